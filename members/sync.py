"""What is written reaches the disk."""

import errno
import os
import stat
from pathlib import Path

_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP}


def sync(path: Path) -> None:
    """Makes the bytes of a file, or the names in a folder, durable. File systems that know no sync
    of a folder, such as some over FUSE or 9P, do with names what they do.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _UNSUPPORTED or not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise
    finally:
        os.close(handle)
