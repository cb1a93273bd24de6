"""Runs a program that ends when its parent does: `die_with_parent.py PARENT_PID PROGRAM ARGS...`.

It becomes the program, so that the process id stays. Linux sends the signal; elsewhere the program
outlives a parent that was killed. It is started as a file by an isolated interpreter, and imports
nothing of the project.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent_pid: int, program: list[str]) -> None:
    """Asks for the signal, then becomes the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent_pid:
        os.execv(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
