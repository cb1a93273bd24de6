"""Wrong implementations on purpose: the checks of the simulation must find each of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

MUTANTS: dict[str, Callable[[], object]] = {}


@contextmanager
def installed(name: str | None) -> Iterator[None]:
    yield
