"""The title of a process, by which `ps` and `top` tell it from others.

A process that was forked keeps the command line of the one that it was forked from: all members of
a group on one machine would look alike, and an operator who wants to end one would end another.
"""

import ctypes
from contextlib import suppress
from pathlib import Path

_STAT, _COMM = Path("/proc/self/stat"), Path("/proc/self/comm")
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 48, 49
"""Numbers of fields, as proc(5) counts them: where the command line lies in memory."""
_FIRST_NUMBER = 3
"""That of the first field behind the name, which may have spaces."""


def set_title(title: str, name: str) -> None:
    """Has `ps` show this process by a title, and `top` as `groupcert:NAME`, of which 15 characters
    count; without `/proc` it stays as it is.

    The title takes the place of the command line, and is cut to its length.
    """
    with suppress(OSError):
        fields = _STAT.read_text().rpartition(")")[2].split()
        begin, end = (int(fields[n - _FIRST_NUMBER]) for n in (_ARGUMENTS_BEGIN, _ARGUMENTS_END))
        # Where the last byte is no zero, the kernel takes the text up to the first zero for all.
        size = end - begin - 2
        ctypes.memmove(begin, title.encode()[:size].ljust(size + 1, b"\0") + b".", size + 2)
        _COMM.write_text(f"groupcert:{name}")
