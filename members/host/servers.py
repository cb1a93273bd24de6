"""Servers as processes of this machine: started, waited for, heard, and ended.

The rule it keeps: a server ends with the block that started it, and with this program, however that
ends; and an error about one has the last that it said.

Unavailable
└── ServerMissing             SERVER_MISSING
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

from ...certifier.errors import Unavailable
from . import die_with_parent
from .interruption import held_back

POLL_SECONDS = 0.02
LOG_CHARACTERS = 2_000


class ServerMissing(Unavailable):
    """The machine has no such server."""

    message = "no {server} here: {advice}"
    server: str
    advice: str


class Process(Protocol):
    """A process that was started here, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None:
        """Returns the exit code, or minus the signal that ended it; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code once it has ended. Raises subprocess.TimeoutExpired."""
        ...


class Server:
    """A program that serves. Started again, it has the same command, and goes on with its log."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        is_ready: Callable[[], object] = lambda: True,
        stop_signal: signal.Signals = signal.SIGTERM,
        start_seconds: float = 120.0,
        stop_seconds: float = 60.0,
        folder: Path | None = None,
        as_user: Sequence[str] = (),
    ) -> None:
        """Describes it; nothing runs before `start`.

        Args:
            command: The program's path and its arguments.
            log: Gets all that it prints.
            is_ready: Asks whether it serves.
            stop_signal: Asks it to end.
            start_seconds: In which it has to be ready.
            stop_seconds: In which it has to end; then it is killed.
            folder: Where it runs; None: here.
            as_user: The beginning of a command that runs the rest as another user.
        """
        self.command = tuple(command)
        self.log = log
        self.is_ready = is_ready
        self.start_seconds = start_seconds
        self._stop_signal = stop_signal
        self._stop_seconds = stop_seconds
        self._folder = folder
        self._as_user = tuple(as_user)
        self._log_offset = 0
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        """The process id of its last start."""
        return self._started.pid

    @property
    def is_running(self) -> bool:
        """True from its start on, until it ends, by itself too."""
        return self._process is not None and self._process.poll() is None

    def start(self, *more: str) -> None:
        """Starts it, with more arguments. It is ready later.

        It ends with the thread that called this (Linux takes the thread for the parent): call it
        from one that runs as long as it.
        """
        assert not self.is_running, "already started"
        self._log_offset = self.log.stat().st_size if self.log.exists() else 0
        with held_back():
            self._process = self._begin((*self.command, *more))

    def wait_ready(self) -> None:
        """Waits until it is ready. Raises NotReady."""
        wait_all_ready([self])

    def poll(self) -> int | None:
        """Returns the exit code, or minus the signal that ended it; None while it runs."""
        return self._started.poll()

    def how_it_ended(self) -> str:
        """Returns by which signal, or with which exit status; empty while it runs."""
        if (code := self.poll()) is None:
            return ""
        return f"by signal {-code}" if code < 0 else f"with exit status {code}"

    def wait(self, seconds_max: float | None = None) -> int:
        """Returns the exit code once it has ended. Raises subprocess.TimeoutExpired."""
        return self._started.wait(seconds_max)

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self) -> int | None:
        """Asks it to end, and kills it if that takes too long; returns its exit code, None if it
        was never started.
        """
        self.ask_to_stop()
        return self.wait_stopped()

    def ask_to_stop(self) -> None:
        """Asks it to end, and does not wait for that."""
        self.send_signal(self._stop_signal)

    def wait_stopped(self) -> int | None:
        """Waits for the end of what was asked to end; kills it if that takes too long."""
        if self._process is None:
            return None
        try:
            return self._process.wait(self._stop_seconds)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
            return self._process.wait()

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.send_signal(signal.SIGKILL)
        self.wait_stopped()

    def said(self) -> str:
        """Returns all that it has printed since its last start."""
        with suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(self._log_offset)
            return log.read().decode(errors="replace")
        return ""

    def last_line(self) -> str:
        """Returns the last line that it has printed since its last start."""
        return (self.said().splitlines() or ["its log is empty"])[-1]

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()

    def _begin(self, command: Sequence[str], pass_fds: Sequence[int] = ()) -> Process:
        """Starts the process, in a session of its own: what a terminal sends does not reach it."""
        # As the last step: a change of the user would have Linux forget whose end ends it.
        parent, end = str(os.getpid()), str(int(self._stop_signal))
        dies = (sys.executable, "-I", "-S", die_with_parent.__file__, parent, end)
        with os.fdopen(open_log(self.log), "ab") as log:
            return subprocess.Popen(
                [*self._as_user, *dies, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=pass_fds,
                cwd=self._folder,
            )

    @property
    def _started(self) -> Process:
        assert self._process is not None, "not started"
        return self._process


def open_log(path: Path) -> int:
    """Opens a log for what is appended to it; a new one is its user's alone."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class NotReady(RuntimeError):
    """A server has ended in place of serving (`how`), or is not ready in time (`how` is empty)."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.how = server.how_it_ended()
        problem = f"ended {self.how}" if self.how else "is not ready in time"
        said = server.said()[-LOG_CHARACTERS:]
        super().__init__(f"{server.command[0]} {problem}; {server.log} ends with:\n{said}")


def wait_all_ready(servers: Iterable[Server]) -> None:
    """Waits until all of some started servers are ready.

    Raises:
        NotReady: One has ended, or is not ready in time.
    """
    everyone, began = [*servers], time.monotonic()
    for server in everyone:
        while not server.is_ready():
            for each in everyone:  # Without one that has ended, the others may never be ready.
                if not each.is_running:
                    raise NotReady(each)
            if time.monotonic() > began + server.start_seconds:
                raise NotReady(server)
            time.sleep(POLL_SECONDS)


def stop_all(servers: Iterable[Server]) -> None:
    """Asks all servers to end, then waits for each."""
    everyone = [*servers]
    for server in everyone:
        server.ask_to_stop()
    for server in everyone:
        server.wait_stopped()


def program(name: str, *, server: str, advice: str) -> str:
    """Returns the path of a server's program; Debian has some where only root has its path.

    Raises:
        ServerMissing: There is none; `advice` says how to install it.
    """
    if found := shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"):
        return found
    raise ServerMissing(server=server, advice=advice)


def make_files(command: Sequence[str], log: Path) -> None:
    """Runs what makes a server's files, before its first start.

    Raises:
        RuntimeError: It failed; the text has the end of its log.
    """
    with log.open("ab") as output:
        done = subprocess.run(command, stdout=output, stderr=output, cwd="/")
    if done.returncode:
        said = log.read_text(errors="replace")[-LOG_CHARACTERS:]
        raise RuntimeError(f"{command[0]} ended with {done.returncode}; {log} ends with:\n{said}")
