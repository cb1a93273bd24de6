"""RocksDB's errors as this project's: who must act, and what to do.

RocksDB says what has happened in words alone, and some of them stand for several things.
"""

import errno
import os
from pathlib import Path

from ..errors import (
    CorruptStore,
    DiskFull,
    ForeignDataFolder,
    InvalidSetting,
)

_FULL_DISK_WORDS = (
    "No space left",
    "space limit",
    "Disk quota",
    "File too large",
    # RocksDB says this after a first error that another thread may not have reported yet; opening
    # the store again shows which error it was.
    "Writer has previous error",
)
_LOCK_WORDS = "/LOCK: "
_LOCKED_HERE_WORDS = "lock hold by current process"
_LOCKED_CAUSE = os.strerror(errno.EAGAIN)


def explained(path: Path, error: Exception) -> Exception:
    """Returns the exception for an error of RocksDB at the store in `path`."""
    text = str(error)
    if any(words in text for words in _FULL_DISK_WORDS):
        return DiskFull(path=str(path), cause=text)
    if _LOCK_WORDS in text:
        return _not_locked(path, text)
    if isinstance(error, OSError):
        return error
    return CorruptStore(path=str(path), problem=text)


def _not_locked(path: Path, text: str) -> Exception:
    """Returns the exception for a lock that RocksDB did not get: perhaps no process has it, but the
    file system has no locks, or the file may not be opened.
    """
    cause = text.rpartition(": ")[2]
    if _LOCKED_HERE_WORDS in text or cause == _LOCKED_CAUSE:
        return ForeignDataFolder(
            path=str(path), found="a process that has it open", expected="nobody else to use it"
        )
    expected = f"one that can be locked ({cause}): on a file system with locks, and this user's own"
    return InvalidSetting(name="data folder", value=str(path), expected=expected)
