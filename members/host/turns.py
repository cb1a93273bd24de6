"""Divides long work on the event loop into turns.

A member has one event loop. Work that a client can make long goes in steps, and calls `others`
after each of them; so no other call waits for more than `TURN_SECONDS` and one step.
"""

import asyncio
import time
from typing import Final

TURN_SECONDS: Final = 0.004


class Turns:
    """One piece of work that goes in steps."""

    def __init__(self) -> None:
        self.deadline = time.perf_counter() + TURN_SECONDS
        """When its turn is over."""

    @property
    def is_over(self) -> bool:
        """True if it is the turn of others."""
        return time.perf_counter() > self.deadline

    async def others(self) -> None:
        """Lets the event loop do what else there is, if this turn is over; begins another one."""
        if self.is_over:
            await asyncio.sleep(0)
            self.deadline = time.perf_counter() + TURN_SECONDS
