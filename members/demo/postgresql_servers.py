"""PostgreSQL servers on this machine that keep the rows of a group's members.

`groupcert up --postgresql`, the demo and the tests run on them. Server and member are real
processes, which can be killed and started again; a server keeps its port.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from ...certifier.errors import NotServing
from ..host.loopback import HOST, free_port
from ..host.postgresql_server import PostgreSqlServer
from ..host.servers import Server, stop_all
from ..postgresql.attachment import Attachment, attach
from ..postgresql.sequences import Numbering
from ..postgresql.status import ask_member
from .command_process import CommandProcess
from .local_group import MEMBERS_MAX, LocalGroup

WRITES_SECONDS_MAX = 120.0
POLL_SECONDS = 0.05


class Primary:
    """A server, and its member once a group has it."""

    group: LocalGroup

    def __init__(
        self, name: str, folder: Path, *options: str, dsn: str | None = None, **server: Any
    ) -> None:
        """Describes it; nothing runs before `server.start`.

        Args:
            name: Of its member.
            folder: Holds everything of the server.
            options: Settings of the server, as `name=value`.
            dsn: Another database, of a server that is started elsewhere; None: its own server's.
            server: What `PostgreSqlServer` takes by name.
        """
        self.name = name
        self.server = PostgreSqlServer(folder / f"postgresql-{name}", *options, **server)
        self.dsn = dsn or self.server.dsn

    @property
    def member(self) -> CommandProcess:
        """The process of its member."""
        return self.group.processes[self.name]

    @property
    def address(self) -> str:
        """Where its member serves."""
        return self.group.addresses[self.name]

    def attach(
        self,
        schema: str,
        numbering: Numbering | None = None,
        *,
        tables: Sequence[str] = ("public.*",),
        new_tables: str = "",
    ) -> Attachment:
        """Runs a schema, and attaches the tables that match patterns.

        Raises:
            UnsuitableTarget: The server cannot be attached, as it has no PL/Python.
        """
        with self.connect() as session:
            session.execute(schema.encode())
        return attach(
            self.dsn,
            tables,
            set_isolation=True,
            numbering=numbering,
            new_tables=new_tables,
        )

    def wait_until_it_takes_writes(self) -> None:
        """Waits until its member serves it.

        Raises:
            NotServing: It does not in time; the text has the reason.
        """
        deadline = time.monotonic() + WRITES_SECONDS_MAX
        while why := self._why_read_only():
            if time.monotonic() > deadline:
                state = f"not taking writes ({why}); see {self.member.log}"
                raise NotServing(member=f"PostgreSQL {self.name}", state=state)
            time.sleep(POLL_SECONDS)

    def _why_read_only(self) -> str:
        try:
            ((reason,),) = self.query("SELECT out_of_group FROM groupcert.settings")
            return ask_member(self.dsn).out_of_group or reason or ""
        except (NotServing, psycopg.OperationalError) as error:
            return str(error).strip()

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


class GroupAtServers(LocalGroup):
    """A group with a member at each of some servers."""

    def __init__(
        self,
        primaries: Sequence[Primary],
        folder: Path,
        *,
        schema: str | None = None,
        tables: Sequence[str] = ("public.*",),
        **options: Any,
    ) -> None:
        """Prepares it; nothing runs before `start`.

        Args:
            schema: Is run at each server, whose tables are attached then; None: the caller starts,
                attaches and stops the servers.
            tables: Patterns of the tables to attach, those too that come later.
            options: As of `LocalGroup`.
        """
        own: dict[str, dict[str, object]] = options.pop("own_settings", {})
        addresses = {primary.name: f"{HOST}:{free_port()}" for primary in primaries}
        super().__init__(
            folder,
            addresses=options.pop("addresses", addresses),
            own_settings={
                primary.name: {"postgresql": primary.dsn, **own.get(primary.name, {})}
                for primary in primaries
            },
            **options,
        )
        self.primaries = primaries
        self._schema = schema
        self._tables = tables
        for primary in primaries:
            primary.group = self

    @property
    def servers(self) -> dict[str, Server]:
        return {**self._databases, **super().servers}

    def start(self) -> None:
        """Starts everything, and returns when every server takes writes.

        Raises:
            UnsuitableTarget: A server has no PL/Python.
            MemberEnded, NotServing: A server or a member did not come up.
        """
        if self._schema is not None:
            for server in self._databases.values():
                server.start()
            self.wait_up(self._databases)
            with ThreadPoolExecutor(len(self.primaries)) as pool:
                list(pool.map(self._attach, self.primaries, range(1, len(self.primaries) + 1)))
        super().start()
        for primary in self.primaries:
            primary.wait_until_it_takes_writes()

    def stop(self) -> None:
        """Stops members and log server, then the servers."""
        super().stop()
        if self._schema is not None:
            stop_all(self._databases.values())

    @property
    def _databases(self) -> dict[str, Server]:
        return {f"PostgreSQL {primary.name}": primary.server for primary in self.primaries}

    def _attach(self, primary: Primary, offset: int) -> None:
        assert self._schema is not None, "the caller attaches"
        numbering = Numbering(offset, MEMBERS_MAX)
        primary.attach(self._schema, numbering, tables=self._tables, new_tables="refuse")
