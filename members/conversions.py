"""Turns large requests into what a member works with, beside the event loop.

Everything that one member does waits for one event loop, so that a request of 100,000 rows, made
into items there, would hold up everybody for 50 ms. A thread does it instead: the loop gets the
interpreter lock back within `SWITCH_INTERVAL_SECONDS`. It is one thread, so that however many such
requests come, the loop shares the lock with one of them.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LIGHT_BYTES = 16 << 10
"""Of a request that the event loop converts itself, in up to 5 ms: a thread costs 0.1 ms more."""
PART_BYTES = 100
"""What each transaction of a request, or row, counts for beside its bytes."""

Result = TypeVar("Result")
_thread = ThreadPoolExecutor(1, "conversions")


async def converted(weight: int, conversion: Callable[[], Result]) -> Result:
    """Returns what a conversion returns, which touches nothing but its own request.

    Args:
        weight: Bytes of the request, and `PART_BYTES` for each of its parts.
    """
    if weight <= LIGHT_BYTES:
        return conversion()
    return await asyncio.get_running_loop().run_in_executor(_thread, conversion)
