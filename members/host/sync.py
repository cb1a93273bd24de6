"""Syncs written files and folders to the disk."""

import errno
import os
import stat
from pathlib import Path

_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP}


def sync(path: Path) -> None:
    """Makes the bytes of a file, or the names in a folder, durable. File systems without a sync of
    folders, such as some over FUSE or 9P, treat names in their own way.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _UNSUPPORTED or not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise
    finally:
        os.close(handle)
