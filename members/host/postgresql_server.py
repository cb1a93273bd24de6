"""A real PostgreSQL for the demo, benchmarks and tests, on loopback, in a folder of its own.

The rule it keeps: it is as durable as its defaults make it, and nothing of the machine's own
servers is touched.
"""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg

from .loopback import HOST, free_port
from .servers import Server, ServerMissing, make_files

POSTGRESQL_FOLDERS = "/usr/lib/postgresql"
OWNER = "postgres"


class PostgreSqlServer(Server):
    """A PostgreSQL, which keeps its port; its superuser `postgres` needs no password."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        """Describes it; its first start makes its files.

        Args:
            folder: It keeps everything there.
            options: Settings as `name=value`, over the ones given here.
            port: None: a free one.

        Raises:
            ServerMissing: None is installed.
        """
        self.port = port or free_port()
        self._home, self._data = folder, folder / "postgresql"
        settings = (
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            f"port={self.port}",
            "max_connections=200",
            *options,
        )
        command = (
            str(postgresql_program("postgres")),
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
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def start(self, *more: str) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(self._home, OWNER, OWNER)
        if not self._data.exists():
            made = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C")
            program = (str(postgresql_program("initdb")), "-D", str(self._data), "--no-sync")
            make_files((*as_postgres(), *program, *made), self.log)
        super().start(*more)

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
