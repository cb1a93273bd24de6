"""The command `groupcert` in a process of its own, forked from one that has imported what its
servers need.

Of the CPU seconds that a started `groupcert member` takes until it is ONLINE, four fifths are spent
on imports. Here one process imports, for all that a program starts.
"""

import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from ..host.process_title import set_title

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(
    [
        "__main__",
        "groupcert.members.commands.cli",
        "groupcert.members.process.serve",
        "groupcert.members.replica.process",
    ]
)


class CommandProcess:
    """`groupcert ARGUMENTS`, running from its creation on."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        module: str = "groupcert.members",
        *,
        name: str = "",
    ) -> None:
        """Starts it; what it prints is appended to the file `log`.

        Args:
            module: Runs as the command: another one may watch it from inside.
            name: `ps` shows it as `groupcert VERB NAME`. Other arguments may have passwords.
        """
        title = f"groupcert {arguments[0]} {name} (log: {log.absolute()})"
        environment = dict(os.environ)
        # As a daemon it is asked to stop when this program ends, and not waited for until it does.
        self._process = _FORKING.Process(
            target=_run, args=(module, arguments, log, environment, (title, name)), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Returns the exit code, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def how_it_ended(self) -> str:
        """Returns by which signal, or with which exit status; empty while it runs."""
        if (code := self.poll()) is None:
            return ""
        return f"by signal {-code}" if code < 0 else f"with exit status {code}"

    def wait(self, seconds_max: float | None = None) -> int:
        """Returns the exit code once the process has ended.

        Raises:
            TimeoutError: It has not ended in time.
        """
        self._process.join(seconds_max)
        if (code := self.poll()) is None:
            raise TimeoutError(f"process {self.pid} did not end within {seconds_max} s")
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends the process without warning."""
        self.send_signal(signal.SIGKILL)


def _run(
    module: str,
    arguments: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    title: tuple[str, str],
) -> None:
    """Becomes the command: in a session of its own, with the environment of who started it, and
    asked to stop when that was killed.
    """
    set_title(*title)
    threading.Thread(target=_stop_after_parent, daemon=True).start()
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    sys.argv = ["groupcert", *arguments]
    runpy.run_module(module, run_name="__main__")


def _stop_after_parent() -> None:
    """Waits for the end of who started this process, then asks it to stop."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "forked for a program"
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
