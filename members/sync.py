"""What is written reaches the disk."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Makes the bytes of a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
