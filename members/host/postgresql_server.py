"""A real PostgreSQL of Debian's, on loopback, in a folder of its own.

The rule it keeps: it is as durable as its defaults make it, whatever is killed, and nothing of the
machine's own servers is touched.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil
import psycopg

from .file_lock import lock
from .loopback import HOST, free_port
from .servers import Process, Server, ServerMissing, make_files

POSTGRESQL_FOLDERS = "/usr/lib/postgresql"
OWNER = "postgres"
LEFT_SECONDS_MAX = 30.0
"""More than processes of a server take to end that was killed, or whose program was."""
POLL_SECONDS = 0.05


class PostgreSqlServer(Server):
    """A PostgreSQL, which keeps its port. Its superuser is `postgres`."""

    def __init__(
        self, folder: Path, *options: str, port: int | None = None, password: str = ""
    ) -> None:
        """Describes it; its first start makes its files.

        Args:
            folder: It keeps everything there.
            options: Settings as `name=value`, over the ones given here.
            port: None: a free one.
            password: Of the superuser, in letters and digits; "": everybody on the machine is
                one, and reads what the server's account may.

        Raises:
            ServerMissing: None is installed, or not the release that has made the files.
        """
        self.port = port or free_port()
        self._password = password
        self._home = folder = folder.absolute()  # It runs elsewhere.
        self._data = folder / "postgresql"
        made_by = self._data / "PG_VERSION"
        self._release = made_by.read_text().strip() if made_by.exists() else ""
        settings = (
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            f"port={self.port}",
            "max_connections=200",
            *options,
        )
        command = (
            str(postgresql_program("postgres", self._release)),
            "-D",
            str(self._data),
            *(part for each in settings for part in ("-c", each)),
        )
        super().__init__(
            command,
            folder / "postgresql.log",
            is_ready=self._takes_sessions,
            stop_signal=signal.SIGINT,
            folder=Path("/"),
            as_user=as_postgres(),
        )

    @property
    def dsn(self) -> str:
        """Where its database `postgres` is."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """Returns the address of one of its databases."""
        user = f"postgres:{self._password}" if self._password else "postgres"
        return f"postgresql://{user}@{HOST}:{self.port}/{database}"

    def start(self, *more: str) -> None:
        """Starts it, with more arguments, once all processes of an earlier start have ended.

        Raises:
            ServerMissing: PostgreSQL has no `initdb`.
            TimeoutError: They have not, after `LEFT_SECONDS_MAX`.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(self._home, OWNER, OWNER)
        if not self._data.exists():
            self._make_files()
        super().start(*more)

    def _make_files(self) -> None:
        """Makes its files aside: a start that was broken off begins again."""
        new = self._home / "new"
        shutil.rmtree(new, ignore_errors=True)
        made = ["--username=postgres", "--encoding=UTF8", "--locale=C"]
        with tempfile.NamedTemporaryFile("w", dir=self._home) as password:
            if self._password:
                password.write(self._password)
                password.flush()
                made += ["--auth=scram-sha-256", f"--pwfile={password.name}"]
            else:
                made += ["--auth=trust"]
            program = (str(postgresql_program("initdb")), "-D", str(new))
            make_files((*as_postgres(), *program, *made), self.log)
        new.rename(self._data)

    def _begin(self, command: Sequence[str], pass_fds: Sequence[int] = ()) -> Process:
        # All of its processes have the lock: beside one that is left PostgreSQL does not start.
        with self._locked() as file:
            return super()._begin(command, (*pass_fds, file.fileno()))

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        deadline = time.monotonic() + LEFT_SECONDS_MAX
        with (self._home / "lock").open("wb") as file:
            while not lock(file, self._home):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"processes of a server are left in {self._home}")
                time.sleep(POLL_SECONDS)
            yield file

    def kill(self) -> None:
        """Kills all of its processes at once, as a machine does that loses its power."""
        if not self.is_running:
            return
        server = psutil.Process(self.pid)
        server.suspend()  # It starts no more of them.
        children = server.children(recursive=True)
        for process in (server, *children):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(children)
        self.wait_stopped()

    def _takes_sessions(self) -> bool:
        with suppress(psycopg.OperationalError):
            psycopg.connect(self.dsn).close()
            return True
        return False


def as_postgres() -> list[str]:
    """Returns the beginning of a command that PostgreSQL's programs accept from root: as another
    user, who may still go through root's folders to its own.
    """
    if os.geteuid() != 0:
        return []
    user = (f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups")
    return ["setpriv", *user, "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


def postgresql_program(name: str, release: str = "") -> Path:
    """Finds a program of a release, such as `15`, or of the newest PostgreSQL: Debian puts only the
    clients on the path.

    Raises:
        ServerMissing: There is none.
    """
    found = shutil.which(name)
    versions = Path(POSTGRESQL_FOLDERS).glob(f"{release or '*'}/bin/{name}")
    newest = max(versions, key=lambda path: float(path.parts[-3]), default=None)
    if newest or found:
        return newest or Path(str(found))
    package = f"postgresql-{release}" if release else "postgresql"
    raise ServerMissing(server="PostgreSQL server", advice=f"sudo apt-get install {package}")
