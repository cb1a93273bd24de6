"""Whether gRPC can be used in this process, or is left over from the one that forked it.

A process forks with one thread, and gRPC has several: in the child it neither goes on nor begins
anew, as long as anything is left of it; a call there waits for its whole time. So before a fork the
connections of clients are closed, if nothing needs them (`client.py`); else, and where
something else of the process uses gRPC, clients of the child say at once what is wrong.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_THREADS = ("event_engine", "grpc_", "lifeguard")
"""How the names of gRPC's threads begin, as Linux has them."""
_at_fork = _why = ""
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
"""By itself gRPC would begin threads in a child, which crash it; who sets it means to use it."""


def note_fork(why: str) -> None:
    """Notes what uses gRPC while this process is forked; empty: nothing."""
    global _at_fork
    _at_fork = why


def note_child() -> None:
    """Notes that this process is the child."""
    global _why
    _why = _at_fork


def is_usable() -> bool:
    """Returns whether gRPC can be used; False: it was at work when this process was forked."""
    return not _why


def check_usable() -> None:
    """Raises RuntimeError if gRPC cannot be used."""
    if _why:
        raise RuntimeError(
            f"{_why} when this process was forked, and gRPC does not go on in a child: fork while "
            "no client is in use, or start the child with `spawn`"
        )


def grpc_runs(seconds: float) -> bool:
    """Returns whether gRPC still has threads after a time, in which they may end. It has none that
    matter where its own support of forks is on.
    """
    ends = time.monotonic() + seconds
    while os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "0").lower() in ("0", "false", ""):
        if not any(name.startswith(_THREADS) for name in _thread_names()):
            break
        if time.monotonic() > ends:
            return True
        time.sleep(0.01)
    return False


def _thread_names() -> Iterator[str]:
    """Yields the names of this process's threads."""
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # It has ended since it was listed.
            yield path.read_text()
