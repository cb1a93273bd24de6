"""PostgreSQL servers on this machine that are primaries of one group: each with its companion.

The demo and the tests run on them. Server and companion are real processes, which can be killed and
started again; a server keeps its port.
"""

import time
from pathlib import Path
from typing import Any

import psycopg

from ...certifier.errors import NotServing
from ..host.postgresql_server import PostgreSqlServer
from ..postgresql.attachment import Attachment, attach
from ..postgresql.sequences import Numbering
from .command_process import CommandProcess

COMMIT_SECONDS_MAX = 120.0
POLL_SECONDS = 0.05


class Primary:
    """A server of one member, with its companion."""

    def __init__(
        self, name: str, member: str, folder: Path, *flags: str, dsn: str | None = None
    ) -> None:
        """Describes both; nothing runs before `server.start` and `companion.start`.

        Args:
            member: Its address, where the companion certifies.
            folder: Holds everything of the server, and the companion's log.
            flags: More of the companion.
            dsn: Another database, of a server that is started elsewhere; None: its own server's.
        """
        self.name = name
        self.member = member
        self.server = PostgreSqlServer(folder / f"postgresql-{name}")
        self.dsn = dsn or self.server.dsn
        arguments = ("postgresql", "--dsn", self.dsn, "--member", member, *flags)
        self.companion = CommandProcess(arguments, folder / f"companion-{name}.log")
        self.companion_restarts = 0
        """How often the companion ended by itself and was started again."""

    def attach(self, schema: str, numbering: Numbering | None = None) -> Attachment:
        """Makes the tables of a schema, and attaches them all.

        Raises:
            UnsuitableTarget: The server cannot be attached, as it has no PL/Python.
        """
        with self.connect() as session:
            session.execute(schema.encode())
        return attach(self.dsn, ["public.*"], set_isolation=True, numbering=numbering)

    def tend_companion(self) -> None:
        """Starts the companion again if it has ended, as a supervisor does."""
        if not self.companion.is_running:
            self.companion_restarts += 1
            self.companion.start()

    def wait_until_it_commits(self, statement: str) -> None:
        """Runs a statement until it commits: then the companion serves.

        Raises:
            NotServing: It does not in time; the text has the reason.
        """
        deadline = time.monotonic() + COMMIT_SECONDS_MAX
        while True:
            try:
                self.query(statement)
                return
            except psycopg.Error as error:
                if time.monotonic() > deadline:
                    state = f"not taking commits ({str(error).strip()}); see {self.companion.log}"
                    raise NotServing(member=f"PostgreSQL {self.name}", state=state) from error
            time.sleep(POLL_SECONDS)

    def connect(self) -> "psycopg.Connection[Any]":
        """Returns a client's session."""
        return psycopg.connect(self.dsn)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Runs a statement in a transaction of its own, and returns its rows."""
        with self.connect() as session:
            cursor = session.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def version(self) -> int:
        """Returns the version of the newest transaction that the server shows."""
        ((version,),) = self.query("SELECT coalesce(max(version), 0) FROM groupcert.executed")
        return int(version)

    def server_version(self) -> str:
        """Returns which PostgreSQL it is, such as 15.14."""
        with self.connect() as session:
            return str(session.info.parameter_status("server_version")).partition(" ")[0]
