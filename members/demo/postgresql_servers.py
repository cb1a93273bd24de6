"""PostgreSQL servers on this machine that keep the rows of a group's members.

The demo and the tests run on them. Server and member are real processes, which can be killed and
started again; a server keeps its port.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from ...certifier.errors import NotServing
from ..host.loopback import HOST, free_port
from ..host.postgresql_server import PostgreSqlServer
from ..postgresql.attachment import Attachment, attach
from ..postgresql.sequences import Numbering
from .command_process import CommandProcess
from .local_group import LocalGroup

COMMIT_SECONDS_MAX = 120.0
POLL_SECONDS = 0.05


class Primary:
    """A server, and its member once `group_at` has a group for it."""

    group: LocalGroup

    def __init__(self, name: str, folder: Path, *, dsn: str | None = None) -> None:
        """Describes it; nothing runs before `server.start`.

        Args:
            name: Of its member.
            folder: Holds everything of the server.
            dsn: Another database, of a server that is started elsewhere; None: its own server's.
        """
        self.name = name
        self.server = PostgreSqlServer(folder / f"postgresql-{name}")
        self.dsn = dsn or self.server.dsn

    @property
    def member(self) -> CommandProcess:
        """The process of its member."""
        return self.group.processes[self.name]

    @property
    def address(self) -> str:
        """Where its member serves."""
        return self.group.addresses[self.name]

    def attach(self, schema: str, numbering: Numbering | None = None) -> Attachment:
        """Makes the tables of a schema, and attaches them all.

        Raises:
            UnsuitableTarget: The server cannot be attached, as it has no PL/Python.
        """
        with self.connect() as session:
            session.execute(schema.encode())
        return attach(self.dsn, ["public.*"], set_isolation=True, numbering=numbering)

    def wait_until_it_commits(self, statement: str) -> None:
        """Runs a statement until it commits: then the member serves it.

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
                    state = f"not taking commits ({str(error).strip()}); see {self.member.log}"
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


def group_at(primaries: Sequence[Primary], folder: Path, **options: Any) -> LocalGroup:
    """Returns the group of servers that are attached, a member for each; `options` as of
    `LocalGroup`.
    """
    own: dict[str, dict[str, object]] = options.pop("own_settings", {})
    group = LocalGroup(
        folder,
        addresses={primary.name: f"{HOST}:{free_port()}" for primary in primaries},
        own_settings={
            primary.name: {"postgresql": primary.dsn, **own.get(primary.name, {})}
            for primary in primaries
        },
        **options,
    )
    for primary in primaries:
        primary.group = group
    return group
