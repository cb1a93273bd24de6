"""A real MariaDB of Debian's, on loopback, in a folder of its own.

The rule it keeps: it is as durable as its defaults make it, and nothing of the machine's own
servers is touched.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql

from .loopback import HOST, free_port
from .servers import Server, make_files, program

MARIADB_USER = "root"


class MariaDbServer(Server):
    """A MariaDB, which keeps its port.

    `data` is where its files are, made by its first start.
    """

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        """Describes it; its first start makes its files.

        Args:
            folder: It keeps everything there.
            options: Of `mariadbd`, such as `--log-bin=binlog`, `--server-id=1`.
            password: Of its user `root`, in letters and digits; "": everybody on the machine is
                one, and reads what the server's account may.

        Raises:
            ServerMissing: None is installed.
        """
        self.port = free_port()
        self.data = folder / "mariadb"
        self._password = password
        self._passwords = folder / "passwords.sql"
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
            *([f"--init-file={self._passwords}"] if password else []),
            *options,
        ]
        log = folder / "mariadb.log"
        super().__init__(command, log, is_ready=self._takes_sessions, folder=Path("/"))

    @property
    def url(self) -> str:
        """Where it is, no database chosen."""
        return self.url_of("")

    def url_of(self, database: str) -> str:
        """Returns the URL of one of its databases."""
        user = f"{MARIADB_USER}:{self._password}" if self._password else MARIADB_USER
        return f"mysql://{user}@{HOST}:{self.port}/{database}"

    def start(self, *more: str) -> None:
        """Starts it, with more arguments.

        Raises:
            ServerMissing: MariaDB has no `mariadb-install-db`.
        """
        self.data.parent.mkdir(parents=True, exist_ok=True)
        if not self.data.exists():
            install = (_mariadb_program("mariadb-install-db"), "--no-defaults", *self._files)
            made = ("--auth-root-authentication-method=normal", "--skip-test-db")
            make_files((*install, *made), self.log)
        if self._password:
            users = (f"{MARIADB_USER}@'{host}'" for host in ("localhost", HOST))
            changes = (f"ALTER USER {user} IDENTIFIED BY '{self._password}';\n" for user in users)
            self._passwords.touch(mode=0o600)
            self._passwords.write_text("".join(("SET sql_log_bin = 0;\n", *changes)))
        super().start(*more)

    def connect(self, database: str = "", **options: Any) -> "pymysql.Connection[Any]":
        """Returns a session of its user `root`; `options`: of `pymysql.connect`."""
        return pymysql.connect(
            host=HOST,
            port=self.port,
            user=MARIADB_USER,
            password=self._password,
            database=database or None,
            **options,
        )

    def query(self, statement: str, database: str = "") -> Sequence[tuple[Any, ...]]:
        """Runs a statement, which commits, and returns its rows."""
        with self.connect(database, autocommit=True) as session, session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def _takes_sessions(self) -> bool:
        with suppress(pymysql.err.OperationalError):
            self.connect().close()
            return True
        return False


def _mariadb_program(name: str) -> str:
    return program(name, server="MariaDB server", advice="sudo apt-get install mariadb-server")
