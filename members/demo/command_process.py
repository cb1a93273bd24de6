"""The command `groupcert` in a process of its own, forked from one that has imported what its
servers need.

Of the CPU seconds that a started `groupcert member` takes until it is ONLINE, four fifths are spent
on imports. Here one process imports, for all that a program starts.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from ...certifier.errors import InvalidSetting
from ..host.process_title import set_title
from ..host.servers import Process, Server, open_log

FOLDER_BYTES_MAX = 107 - len("/pymp-12345678/listener-12345678")
"""The socket of the process that forks is below the folder for temporary files, and Linux takes 107
bytes for its path."""
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(
    [
        "__main__",
        "groupcert.members.commands.cli",
        "groupcert.members.process.serve",
        "groupcert.members.replica.replica_process",
    ]
)


class CommandProcess(Server):
    """`groupcert ARGUMENTS` in a process of its own."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        *,
        module: str = "groupcert.members",
        name: str = "",
        is_ready: Callable[[], object] = lambda: True,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Describes it; what it prints is appended to the file `log`.

        Args:
            module: Runs as the command: another one may watch it from inside.
            name: `ps` shows it as `groupcert VERB NAME`. Other arguments may have passwords.
        """
        super().__init__(arguments, log, is_ready=is_ready, stop_signal=stop_signal)
        self._module = module
        self._name = name

    def _begin(self, command: Sequence[str], pass_fds: Sequence[int] = ()) -> Process:
        title = f"groupcert {command[0]} {self._name} (log: {self.log.absolute()})"
        environment = dict(os.environ)
        return _Forked((self._module, command, self.log, environment, (title, self._name)))


class _Forked:
    """A process that runs the command."""

    def __init__(self, arguments: tuple[object, ...]) -> None:
        folder = tempfile.gettempdir()
        if len(os.fsencode(folder)) > FOLDER_BYTES_MAX:
            expected = f"a folder for temporary files of at most {FOLDER_BYTES_MAX} bytes"
            raise InvalidSetting(name="TMPDIR", value=folder, expected=expected)
        # As a daemon it is asked to stop when this program ends, and not waited for until it does.
        self._process = _FORKING.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code


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
    output = open_log(log)  # From here on Ctrl-C does not reach it, which its log shows.
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
