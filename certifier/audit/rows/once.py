"""Values of a log that several jobs ask for, each made once.

Jobs run at once, and `functools.cache` alone is no lock: two that ask at the same time would both
make the value.
"""

from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from typing import TypeVar

from groupcert.certifier.audit.rows.log import Log

Value = TypeVar("Value")


def once(function: Callable[[Log], Value]) -> Callable[[Log], Value]:
    """Returns a function that makes its value for a log once; who asks meanwhile waits."""
    kept, lock = cache(function), RLock()

    @wraps(function)
    def made_once(log: Log) -> Value:
        with lock:
            return kept(log)

    return made_once
