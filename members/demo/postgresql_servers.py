"""PostgreSQL servers on this machine that are primaries of one group: each with its companion.

The demo and the tests run on them. Server and companion are real processes, which can be killed and
started again; a server keeps its port.
"""

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg

from ...certifier.errors import NotServing
from ..host.database_servers import (
    PostgreSqlServer,
    kill_server,
    postgresql_server,
)
from ..postgresql.attachment import Attachment, attach
from .command_process import CommandProcess
from .local_group import POLL_SECONDS, START_SECONDS, STOP_SECONDS


class Primary:
    """A server of one member, of the same name."""

    def __init__(self, name: str, member: str, folder: Path) -> None:
        """Prepares; nothing runs before `start_server`.

        Args:
            member: Its address, where the companion certifies.
            folder: Holds everything of the server, and the companion's log.
        """
        self.name = name
        self.member = member
        self.companion: CommandProcess | None = None
        self.companion_restarts = 0
        """How often the companion ended by itself and was started again."""
        self._folder = folder / f"postgresql-{name}"
        self._log = folder / f"companion-{name}.log"
        self._running = ExitStack()
        self._server: PostgreSqlServer | None = None

    @property
    def server(self) -> PostgreSqlServer:
        """The server, which may have been killed since."""
        assert self._server is not None, "not started"
        return self._server

    @property
    def dsn(self) -> str:
        """Where clients connect."""
        return self.server.dsn

    def start_server(self) -> None:
        """Starts the server, or one that was killed again, and returns when it takes sessions.

        Raises:
            ServerMissing: None is installed.
        """
        port = self._server.port if self._server else None
        self._server = self._running.enter_context(postgresql_server(self._folder, port=port))

    def attach(self, schema: str, tables: Sequence[str] = ("public.*",)) -> Attachment:
        """Makes the tables of a schema, and attaches those that match the patterns.

        Raises:
            UnsuitableTarget: The server cannot be attached, as it has no PL/Python.
        """
        with self.connect() as session:
            session.execute(schema.encode())
        return attach(self.dsn, tables, set_isolation=True)

    def start_companion(self) -> None:
        """Starts the companion."""
        arguments = ("postgresql", "--dsn", self.dsn, "--member", self.member)
        self.companion = CommandProcess(arguments, self._log)

    def tend_companion(self) -> None:
        """Starts the companion again if it has ended, as a supervisor does."""
        if self.companion is not None and self.companion.poll() is not None:
            self.companion_restarts += 1
            self.start_companion()

    def wait_until_it_commits(self, statement: str) -> None:
        """Runs a statement until it commits: then the companion serves.

        Raises:
            NotServing: It does not in time; the text has the reason.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.query(statement)
                return
            except psycopg.Error as error:
                if time.monotonic() > deadline:
                    state = f"not taking commits ({str(error).strip()}); see {self._log}"
                    raise NotServing(member=f"PostgreSQL {self.name}", state=state) from error
            time.sleep(POLL_SECONDS)

    def kill_server(self) -> None:
        """Kills the server without warning; what it had not written to its log is lost."""
        kill_server(self.server.pid)
        self._running.close()

    def kill_companion(self) -> None:
        """Kills the companion without warning."""
        if self.companion is not None:
            self.companion.kill()
            self.companion.wait()
            self.companion = None

    def stop_companion(self) -> None:
        """Stops the companion, if it runs."""
        if self.companion is not None:
            self.companion.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                self.companion.wait(STOP_SECONDS)
        self.kill_companion()

    def stop_server(self) -> None:
        """Stops the server, if it runs."""
        self._running.close()

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
