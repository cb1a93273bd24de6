"""Files that nobody else on this machine may read: what a member, its log and its backups hold is
rows, and its settings have passwords.

The rule it keeps: permissions come from the process's umask, which the log server, RocksDB and
Parquet get, too. Modes at each file would be forgotten at one of them, and would narrow what an
access control list grants, which new files get in place of the umask.
"""

import os
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_OTHERS = 0o077
_ACCESS_LIST = "system.posix_acl_access"


def _tell(text: str) -> None:
    sys.stderr.write(f"groupcert: {text}\n")
    sys.stderr.flush()


def keep_private(
    folders: Iterable[Path | None] = (), tell: Callable[[str], object] = _tell
) -> None:
    """Has all files that this process and its children make from now on be their user's alone;
    tells of each of these folders, where it is there, if others may read in it.
    """
    os.umask(_OTHERS)
    for folder in folders:
        for text in () if folder is None else exposed(folder):
            tell(text)


def exposed(folder: Path) -> Iterator[str]:
    """Yields a sentence with the command that mends it if others may read in a folder.

    Whoever has an entry in its access control list was given that by somebody who meant it.
    """
    if not folder.is_dir():
        return
    folder = folder.absolute()
    found = folder.stat()
    group = 0 if _has_access_list(folder) else found.st_mode & 0o070
    # Others get there only if they may pass all folders above.
    above = [each.stat() for each in folder.parents]
    by_all = found.st_mode & 0o007 and all(each.st_mode & 0o001 for each in above)
    by_group = group and all(
        each.st_mode & 0o001 or (each.st_gid == found.st_gid and each.st_mode & 0o010)
        for each in above
    )
    if by_all or by_group:
        who = "everybody on this machine" if by_all else f"group {found.st_gid}"
        mode, command = stat.filemode(found.st_mode), f"chmod -R go= {shlex.quote(str(folder))}"
        yield f"{who} may read in {folder} ({mode}), where rows or passwords are: {command}"


def _has_access_list(folder: Path) -> bool:
    """Returns whether an access control list names more than owner, group and others."""
    try:
        return _ACCESS_LIST in os.listxattr(folder)
    except (AttributeError, OSError):  # Neither every system has them nor every file system.
        return False
