"""Processes that stand still, as those of a machine that is out of memory or suspended do."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FREEZING_SECONDS_MAX = 30.0


def freeze(pid: int) -> None:
    """Stops a process, and returns when none of its threads runs any more: until it has seen the
    signal, a thread goes on and may still answer.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + FREEZING_SECONDS_MAX
    while any(_state(thread) not in "TtZX" for thread in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} goes on"
        time.sleep(0.005)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process stands still during the block."""
    freeze(pid)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _state(thread: Path) -> str:
    """Returns the letter that Linux has for the state of a thread."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]
