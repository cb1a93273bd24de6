"""Values of a log that several jobs ask for, each made once and kept as long as the log is."""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import TypeVar, cast

from .certification_log import Log

Value = TypeVar("Value")


def once(function: Callable[[Log], Value]) -> Callable[[Log], Value]:
    """Returns a function that makes its value for a log once; who asks meanwhile waits."""
    lock = RLock()

    @wraps(function)
    def made_once(log: Log) -> Value:
        with lock:
            if function not in log.made:
                log.made[function] = function(log)
            return cast("Value", log.made[function])

    return made_once
