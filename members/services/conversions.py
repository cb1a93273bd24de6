"""Converts large requests in a thread, beside the event loop.

A member has one event loop, so that a request of 100,000 rows, made into items there, would hold up
every call for 50 ms. A thread does it instead: the loop gets the interpreter lock back within
`SWITCH_INTERVAL_SECONDS`. It is one thread, so that the loop shares the lock with one of them,
however many such requests come.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from groupcert.v1 import store_pb2

LIGHT_BYTES = 16 << 10
"""Bytes of a request that the event loop converts itself, in up to 5 ms: a thread costs 0.1 ms
more."""
PART_BYTES = 100
"""Bytes that each transaction of a request, or row, counts for beside its own bytes."""

Result = TypeVar("Result")
_thread = ThreadPoolExecutor(1, "conversions")


def weight_of(request: store_pb2.CommitRequest) -> int:
    """Returns the weight of a commit for `converted`: that of its keys, as its values are copied
    unread.
    """
    changes = request.changes
    return PART_BYTES * sum(map(len, (changes.put_keys, changes.delete_keys, request.read_keys)))


async def converted(weight: int, conversion: Callable[[], Result]) -> Result:
    """Returns the result of `conversion`, which may touch nothing but its own request.

    Args:
        weight: Bytes of the request, and `PART_BYTES` for each of its parts.
    """
    if weight <= LIGHT_BYTES:
        return conversion()
    return await asyncio.get_running_loop().run_in_executor(_thread, conversion)
