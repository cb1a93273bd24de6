"""Locks of files, which tell other processes that a folder is in use."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ...certifier.errors import InvalidSetting

Lockable = IO[bytes] | IO[str] | int


def lock(
    file: Lockable,
    folder: Path,
    by: Callable[[Lockable, int], object] = fcntl.flock,
    *,
    shared: bool = False,
) -> bool:
    """Locks a file of a folder for this process; returns False if another one has the lock.

    Args:
        by: `fcntl.lockf` for the other kind of locks, which RocksDB takes.
        shared: Others may have it, too, who share it.

    Raises InvalidSetting: The folder's file system has no locks.
    """
    try:
        by(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        expected = f"one on a file system with locks, as a local disk has ({error.strerror})"
        raise InvalidSetting(name="folder", value=str(folder), expected=expected) from error
    return True
