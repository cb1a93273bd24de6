"""What members do wrong on purpose at every health check of a client."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from groupcert.members.door.answer_budget import Unsent
from groupcert.members.door.door import Deliveries
from groupcert.members.services.health import HealthChecks
from tests.fuzz.watcher import HELD_MS_MAX
from tests.laboratory.mutants import Mutant, mutant


def _hold() -> None:
    """Works on the event loop for longer than it may."""
    ends = time.thread_time() + 2 * HELD_MS_MAX / 1000
    while time.thread_time() < ends:
        pass


def _end() -> None:
    """Ends the process, as an assertion would that fails."""
    os._exit(70)


def _raise() -> None:
    """Raises what no caller is told."""
    raise ZeroDivisionError("on purpose")


def _keep() -> None:
    """Counts no answers that nobody has taken, and ends none of their calls."""

    async def room(self: Unsent, size: int = 0) -> None:
        del self, size

    Unsent.room = room  # type: ignore[method-assign]  # broken on purpose
    Unsent.settle = lambda self, size: None  # type: ignore[method-assign]
    Deliveries.begin = lambda *_: None  # type: ignore[method-assign]


def _at_each_check(act: Callable[[], None]) -> Mutant:
    check = HealthChecks.Check

    async def broken(self: HealthChecks, request: Any, context: Any) -> Any:
        act()
        return await check(self, request, context)

    return mutant(HealthChecks, "Check", broken)


MUTANTS: Mapping[str, Mutant] = {
    "hold": _at_each_check(_hold),
    "end": _at_each_check(_end),
    "raise": _at_each_check(_raise),
    "keep": _at_each_check(_keep),
}
