"""The loops, compiled by numba where that is installed; else as they are.

numba takes some seconds to compile, so that it keeps the result in a folder that its caller names.
It does not notice when a function in another file changes: the folder's name should have
`digest()` in it.
"""

import inspect
from array import array
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from .. import dependencies
from . import engine, job_list, partitions, stamp_rules, state
from .state import Columns, Settings, State

_MODULES = (state, stamp_rules, job_list, partitions, engine)


class Loops(NamedTuple):
    """The loops, and what makes of an array the view that they take."""

    run: Callable[[Settings, Columns, State], None]
    count_overtakers: Callable[..., int]
    view: Callable[["array[int]"], Sequence[int]]
    is_compiled: bool


PLAIN = Loops(engine.run, dependencies.count_overtakers, lambda column: column, is_compiled=False)
"""The loops as Python runs them."""


def compiled(cache: Path | None) -> Loops:
    """Returns the loops, to be compiled when they are called first, or loaded from the folder
    `cache`; None: nothing is kept.

    Raises:
        ModuleNotFoundError: numba is not installed.
    """
    import numba
    import numpy
    from numba.extending import register_jitable

    # The arrays outlive each call, so that no references to them have to be counted.
    options: dict[str, Any] = {"_nrt": False}
    for module in _MODULES:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                register_jitable(**options)(function)
    settings: Any = numba.config
    # A setting of the whole process, read where a function is compiled: others keep theirs.
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(cache or "")
    try:
        jit = numba.njit(cache=cache is not None, nogil=True, **options)
        run, count = jit(engine.run), jit(dependencies.count_overtakers)
    finally:
        settings.CACHE_DIR = before

    def view(column: "array[int]") -> Sequence[int]:
        numbers = numpy.asarray(column)
        # Signed and unsigned numbers together would become floats in compiled loops.
        signed = numbers.view(numpy.int64) if column.typecode == "Q" else numbers
        return signed  # type: ignore[return-value]  # it is indexed by numbers, as one is

    return Loops(run, count, view, is_compiled=True)


def digest() -> str:
    """Returns a digest of all sources that are compiled."""
    sources = [inspect.getsource(module) for module in (*_MODULES, dependencies)]
    return sha256("".join(sources).encode()).hexdigest()[:16]
