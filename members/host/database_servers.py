"""Real SQL servers for the demo, benchmarks and tests: PostgreSQL and MariaDB, on loopback, each in
a folder of its own.

The rule it keeps: they are as durable as their defaults make them, they end with the block that
started them, and nothing of the machine's own servers is touched.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import pymysql

from . import die_with_parent
from .loopback import HOST, free_port
from .server_missing import ServerMissing

MARIADB_USER = "root"
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 60
POLL_SECONDS = 0.02
POSTGRESQL_FOLDERS = "/usr/lib/postgresql"
LOG_CHARACTERS = 2_000
PREPARING = "max_prepared_transactions=64"
"""What a target of a replica needs, and a server of a group must not have."""


@dataclass(frozen=True, slots=True)
class PostgreSqlServer:
    """A running PostgreSQL; its superuser `postgres` needs no password."""

    port: int
    pid: int

    @property
    def dsn(self) -> str:
        """Where its database `postgres` is."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """Returns the address of one of its databases."""
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"


@dataclass(frozen=True, slots=True)
class MariaDbServer:
    """A running MariaDB; its user `root` needs no password. `data`: where its files are."""

    port: int
    pid: int
    data: Path

    @property
    def url(self) -> str:
        """Where it is, no database chosen."""
        return self.url_of("")

    def url_of(self, database: str) -> str:
        """Returns the URL of one of its databases."""
        return f"mysql://{MARIADB_USER}@{HOST}:{self.port}/{database}"


@contextmanager
def postgresql_server(
    folder: Path, *options: str, port: int | None = None
) -> Iterator[PostgreSqlServer]:
    """Starts a PostgreSQL in a folder, where it keeps everything; stops it at the end.

    Args:
        options: settings as `name=value`, over the ones given here.
        port: where it was before it was killed; None: a free one.

    Raises:
        ServerMissing: none is installed.
    """
    initdb, postgres = (str(postgresql_program(name)) for name in ("initdb", "postgres"))
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "postgresql"
    port = port or free_port()
    settings = (
        *("listen_addresses=127.0.0.1", "unix_socket_directories=", f"port={port}"),
        *("max_connections=200", *options),
    )
    start = [postgres, "-D", str(data), *(part for each in settings for part in ("-c", each))]
    as_user = _as_other_user(folder)
    with (folder / "postgresql.log").open("ab") as log:
        if not data.exists():
            made = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C")
            command = [*as_user, initdb, "-D", str(data), "--no-sync", *made]
            _make(command, Path(log.name), log.fileno())
        command = [*as_user, *_dying_with_us(), *start]
        with _running(command, log.fileno(), stop=signal.SIGINT) as process:
            server = PostgreSqlServer(port, process.pid)
            _wait(process, Path(log.name), lambda: psycopg.connect(server.dsn).close())
            yield server


@contextmanager
def mariadb_server(folder: Path, *options: str, port: int | None = None) -> Iterator[MariaDbServer]:
    """Starts a MariaDB in a folder, where it keeps everything; stops it at the end.

    Args:
        options: of `mariadbd`, such as `--log-bin=binlog`, `--server-id=1`, `--binlog-format=ROW`.
        port: where it was before it was killed; None: a free one.

    Raises:
        ServerMissing: none is installed.
    """
    install, mariadbd = (_program(name) for name in ("mariadb-install-db", "mariadbd"))
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "mariadb"
    port = port or free_port()
    user = ["--user=root"] if os.geteuid() == 0 else []
    start = [
        *(mariadbd, "--no-defaults", f"--datadir={data}", f"--tmpdir={folder}", *user),
        *(f"--socket={data.name}.sock", f"--pid-file={data}.pid", f"--port={port}"),
        *(f"--bind-address={HOST}", "--skip-name-resolve", "--innodb-buffer-pool-size=64M"),
        *("--innodb-flush-log-at-trx-commit=1", "--max-connections=200", *options),
    ]
    with (folder / "mariadb.log").open("ab") as log:
        if not data.exists():
            made = ("--auth-root-authentication-method=normal", "--skip-test-db")
            where = (f"--datadir={data}", f"--tmpdir={folder}")
            command = [install, "--no-defaults", *where, *user, *made]
            _make(command, Path(log.name), log.fileno())
        command = [*_dying_with_us(), *start]
        with _running(command, log.fileno(), stop=signal.SIGTERM) as process:
            server = MariaDbServer(port, process.pid, data)
            _wait(process, Path(log.name), lambda: connect_mariadb(server.url).close())
            yield server


def connect_mariadb(url: str) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    """Opens a session of the user `root`; each statement commits."""
    address, _, database = url.rpartition("@")[2].partition("/")
    host, _, port = address.partition(":")
    return pymysql.connect(
        host=host, port=int(port), user=MARIADB_USER, database=database or None, autocommit=True
    )


def postgresql_program(name: str) -> Path:
    """Finds a program of the newest PostgreSQL: Debian puts only the clients on the path.

    Raises:
        ServerMissing: There is none.
    """
    found = shutil.which(name)
    versions = Path(POSTGRESQL_FOLDERS).glob(f"*/bin/{name}")
    newest = max(versions, key=lambda path: float(path.parts[-3]), default=None)
    if newest or found:
        return newest or Path(str(found))
    raise ServerMissing(server="PostgreSQL server", advice="sudo apt-get install postgresql")


def kill_server(pid: int) -> None:
    """Kills a server with all of its processes at once, as a machine does that loses its power."""
    server = psutil.Process(pid)
    server.suspend()  # It starts no more of them.
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes[1:])


@contextmanager
def _running(
    command: Sequence[str], log: int, *, stop: signal.Signals
) -> Iterator["subprocess.Popen[bytes]"]:
    """Starts a process that ends with the block: it is asked first, then killed."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
    )
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", log: Path, connect: Callable[[], None]) -> None:
    """Waits until the server takes connections."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            return connect()
        except (psycopg.OperationalError, pymysql.err.OperationalError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-LOG_CHARACTERS:]
                raise RuntimeError(f"{error}; {log} ends with:\n{tail}") from error
        time.sleep(POLL_SECONDS)


def _make(command: Sequence[str], log: Path, output: int) -> None:
    """Runs what makes a server's folder; an error shows the end of its log."""
    done = subprocess.run(command, stdout=output, stderr=output, cwd="/")
    if done.returncode:
        tail = log.read_text(errors="replace")[-LOG_CHARACTERS:]
        raise RuntimeError(f"{command[0]} ended with {done.returncode}; {log} ends with:\n{tail}")


def _dying_with_us() -> list[str]:
    """Returns the beginning of a command whose process ends with this one."""
    return [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]


def _as_other_user(folder: Path) -> list[str]:
    """Returns the beginning of a command that PostgreSQL accepts from root: as another user, who
    may still go through root's folders to its own.
    """
    if os.geteuid() != 0:
        return []
    shutil.chown(folder, "postgres", "postgres")
    user = ("--reuid=postgres", "--regid=postgres", "--clear-groups")
    return ["setpriv", *user, "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


def _program(name: str) -> str:
    """Finds a program of MariaDB; Debian's server is where only root has its path."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found:
        return found
    raise ServerMissing(server="MariaDB server", advice="sudo apt-get install mariadb-server")
