"""A process for which no file can be locked, as on a file system without locks.

The kernel itself refuses: a filter of system calls gives the answer of such a file system.
"""

import ctypes
import errno
import platform
import subprocess
import sys

import pytest

from tests.sources import ROOT

_CALLS = {"x86_64": (72, 73), "aarch64": (25, 32)}
"""Numbers of `fcntl` and `flock`."""
_F_SETLK = 6
_NO_NEW_PRIVILEGES, _SET_FILTER, _FILTER = 38, 22, 2
_LOAD, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _COMMAND = 0, 24
"""Where the call's number is in what a filter sees, and its second argument."""
_ALLOW, _FAIL = 0x7FFF0000, 0x50000


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_ushort),
        ("if_so", ctypes.c_ubyte),
        ("else_", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction))]


def refuse_locks() -> None:
    """Has all locks of files fail in this process and its children, for good."""
    fcntl, flock = _CALLS[platform.machine()]
    steps = (
        (_LOAD, 0, 0, _NUMBER),
        (_IS_EQUAL, 3, 0, flock),
        (_IS_EQUAL, 0, 3, fcntl),
        (_LOAD, 0, 0, _COMMAND),
        (_IS_EQUAL, 0, 1, _F_SETLK),
        (_RETURN, 0, 0, _FAIL | errno.ENOLCK),
        (_RETURN, 0, 0, _ALLOW),
    )
    instructions = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    system = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (_SET_FILTER, _FILTER, ctypes.byref(_Program(len(steps), instructions)), 0, 0),
    ):
        if system.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "no filter of system calls")


def python_without_locks(code: str, *arguments: str) -> str:
    """Returns what a program prints in a process that can lock no file."""
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        pytest.skip("numbers of this system's calls are not known here")
    begin = "from tests.lockless import refuse_locks; refuse_locks()\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + code, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    if "no filter of system calls" in done.stderr:
        pytest.skip("this system filters no system calls")
    assert done.returncode == 0, done.stderr
    return done.stdout
