"""Databases for tests, in real SQL servers: PostgreSQL's, and a MariaDB that only tests use.

The rule it keeps: nothing of a test's database is left when its block ends.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pymysql
import pytest

from groupcert.applier.errors import UnsuitableTarget
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.host.postgresql_server import PostgreSqlServer, postgresql_program
from groupcert.members.host.servers import Server, ServerMissing, make_files, program

__all__ = [
    "PREPARING",
    "MariaDbServer",
    "PostgreSqlServer",
    "ServerMissing",
    "connect_mariadb",
    "mariadb_database",
    "postgresql_database",
    "postgresql_program",
    "where_installed",
]

MARIADB_USER = "root"
PREPARING = "max_prepared_transactions=64"
"""What a target of a replica needs, and a server of a group must not have."""


class MariaDbServer(Server):
    """A MariaDB, which keeps its port; its user `root` needs no password.

    `data` is where its files are, made by its first start. It is as durable as its defaults.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        """`options`: of `mariadbd`, such as `--log-bin=binlog`, `--server-id=1`."""
        self.port = free_port()
        self.data = folder / "mariadb"
        self._files = [f"--datadir={self.data}", f"--tmpdir={folder}"]
        self._files += ["--user=root"] if os.geteuid() == 0 else []
        command = [
            _mariadb_program("mariadbd"),
            "--no-defaults",
            *self._files,
            "--socket=mariadb.sock",
            f"--pid-file={self.data}.pid",
            f"--port={self.port}",
            f"--bind-address={HOST}",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=1",
            "--max-connections=200",
            *options,
        ]
        log = folder / "mariadb.log"
        super().__init__(command, log, is_ready=self._takes_sessions, folder=Path("/"))

    @property
    def url(self) -> str:
        """Where it is, no database chosen."""
        return self.url_of("")

    def url_of(self, database: str) -> str:
        """The URL of one of its databases."""
        return f"mysql://{MARIADB_USER}@{HOST}:{self.port}/{database}"

    def start(self, *more: str) -> None:
        self.data.parent.mkdir(parents=True, exist_ok=True)
        if not self.data.exists():
            install = (_mariadb_program("mariadb-install-db"), "--no-defaults", *self._files)
            make_files(
                (*install, "--auth-root-authentication-method=normal", "--skip-test-db"), self.log
            )
        super().start(*more)

    def _takes_sessions(self) -> bool:
        with suppress(pymysql.err.OperationalError):
            connect_mariadb(self.url).close()
            return True
        return False


def connect_mariadb(url: str) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    """Opens a session of the user `root`; each statement commits."""
    address, _, database = url.rpartition("@")[2].partition("/")
    host, _, port = address.partition(":")
    return pymysql.connect(
        host=host, port=int(port), user=MARIADB_USER, database=database or None, autocommit=True
    )


def _mariadb_program(name: str) -> str:
    return program(name, server="MariaDB server", advice="sudo apt-get install mariadb-server")


@contextmanager
def where_installed() -> Iterator[None]:
    """Skips a test whose server is not on this machine, or cannot do what it has to.

    `REQUIRE_DATABASES=1`, where they are installed for the tests, makes a failure of it.
    """
    try:
        yield
    except (ServerMissing, UnsuitableTarget) as error:
        if os.environ.get("REQUIRE_DATABASES") == "1":
            raise
        pytest.skip(str(error))


@contextmanager
def postgresql_database(server: PostgreSqlServer, name: str) -> Iterator[str]:
    """A database that is gone afterwards, whoever is still connected to it."""
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute(f'CREATE DATABASE "{name}"'.encode())
        yield server.dsn_of(name)
        with psycopg.connect(server.dsn_of(name), autocommit=True) as inside:
            for (transaction,) in inside.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            ):
                inside.execute(f"ROLLBACK PREPARED '{transaction}'".encode())
        session.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@contextmanager
def mariadb_database(server: MariaDbServer, name: str) -> Iterator[str]:
    """A database that is gone afterwards, with every branch that is prepared at the server: one
    that nobody settled would keep it for ever.
    """
    with closing(connect_mariadb(server.url)) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{name}`")
        yield server.url_of(name)
        cursor.execute("XA RECOVER FORMAT='SQL'")
        for *_, branch in cursor.fetchall():
            cursor.execute(f"XA ROLLBACK {branch}")
        cursor.execute(f"DROP DATABASE `{name}`")
