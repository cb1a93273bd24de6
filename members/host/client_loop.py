"""The event loop of clients: uvloop's where a member's packages are installed, else Python's own.

A client is installed without uvloop, which takes as much room as gRPC itself.
"""

import asyncio
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of a coroutine, run on a loop of its own in this thread."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Returns a loop that does not run yet."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
