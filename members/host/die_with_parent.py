"""Runs a program that is asked to end when its parent has: `die_with_parent.py PARENT_PID SIGNAL
PROGRAM ARGS...`.

It becomes the program, so that the process id stays. Linux sends the signal; elsewhere the program
outlives a parent that was killed. It is started as a file by an isolated interpreter, and imports
nothing of the project.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent_pid: int, signal: int, program: list[str]) -> None:
    """Asks for the signal, then becomes the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal)
    if os.getppid() == parent_pid:
        os.execv(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
