"""Waiting for what has no event, for so long at most."""

import asyncio
from collections.abc import Callable

SECONDS_MAX = 120


async def until(happened: Callable[[], object]) -> None:
    """Returns once something has happened; who waits for ever would hang all tests."""
    async with asyncio.timeout(SECONDS_MAX):
        while not happened():  # noqa: ASYNC110 - what happens has no event
            await asyncio.sleep(0.005)
