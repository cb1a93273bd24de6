"""How tests wait for what a group does in its own time."""

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS_MAX = 120.0
POLL_SECONDS = 0.02

Found = TypeVar("Found")


def wait_for(what: str, find: Callable[[], Found], seconds_max: float = SECONDS_MAX) -> Found:
    """Returns what `find` finds, as soon as that is true; fails with `what` if it never is."""
    deadline = time.monotonic() + seconds_max
    while not (found := find()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds_max:.0f} s"
        time.sleep(POLL_SECONDS)
    return found
