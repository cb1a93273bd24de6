"""A real disk that is small, so that it is full soon; only root may mount one."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILLER = "filler"


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Has a file system in memory in a folder, which is made, until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "none", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root mounts a disk")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this machine mounts no disk: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, *, left: int = 0) -> None:
    """Takes all space of a disk but for `left` bytes; `make_room` gives it back."""
    free = shutil.disk_usage(disk).free
    with (disk / FILLER).open("ab") as filler:
        os.posix_fallocate(filler.fileno(), filler.tell(), max(free - left, 1))


def make_room(disk: Path) -> None:
    """Gives back what `fill` took."""
    (disk / FILLER).unlink()
