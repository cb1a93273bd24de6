"""The rows of a replica's source, as its target reads them: of a group, or of a server's tables.

A server's tables are looked up when the target is opened, and so again when a table map does not
fit them any more.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import structlog
from pymysql.cursors import SSCursor

from ...applier.errors import UnsuitableTarget
from ...applier.mysql_logs.source_catalogue import Query, SourceTable, read_catalogue
from ...applier.mysql_logs.statement_payload import PayloadStatement
from ...applier.mysql_servers.server_url import ServerUrl
from ...applier.mysql_servers.snapshot import Snapshot, opened_snapshot
from ...applier.mysql_servers.source_errors import SourceLost
from ...applier.mysql_servers.source_log import definitions_after
from ...applier.targets.logged_tables import Place, TableHistory
from ...applier.targets.source_documents import Documents, SourceDocuments
from ...applier.targets.source_tables import ServerTables
from ...applier.targets.sql_schema import SqlSchema
from ...applier.targets.sql_tables import SourceTables
from ...certifier.gtid import Gtid
from ...certifier.gtid_set import GtidSet
from ..settings.replica import SERVER_SCHEMES
from ..wire.row_changes import decode_changes

_NATIVE = "innodb_native_foreign_keys"
Answer = TypeVar("Answer")
COPY_ANSWER_SECONDS = 3_600.0
"""Seconds in which a server has to send more rows of a table, or get its lock."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class SourceRows(Protocol):
    """Reads the payloads of one kind of source."""

    @property
    def logs_cascades(self) -> bool:
        """Whether a source's log has what foreign keys do there, children before their parents."""
        ...

    def tables(self, target: str) -> SourceTables:
        """Returns the tables for an SQL target, as they are now."""
        ...

    def documents(self, place: Place) -> Documents:
        """Returns the reader of payloads for a store that is at a place of the source's log."""
        ...


class GroupRows:
    """The rows of a group, by a mapping where the target is an SQL server."""

    logs_cascades = False

    def __init__(self, mapping: Path | None, scheme: str = "") -> None:
        """Reads a mapping, if there is one, for a replica with this scheme."""
        self._mapping = mapping
        self._scheme = scheme

    def tables(self, target: str) -> SourceTables:
        """Returns the mapping. Raises UnsuitableTarget if it is missing or malformed."""
        if self._mapping is None:
            raise UnsuitableTarget(
                target=target.partition("@")[2] or target,
                problem="there is no mapping of rows to its tables",
                expected="--mapping FILE, a TOML file (see applier/targets/sql_schema.py)",
            )
        text = self._mapping.read_text(encoding="utf-8")
        return SqlSchema.parse(text, decode_changes, str(self._mapping), self._scheme)

    def documents(self, place: Place) -> Documents:
        """Returns the reader of row changes."""
        return Documents(decode_changes, {})


class ServerRows:
    """The rows of a MySQL or MariaDB server's tables."""

    def __init__(self, urls: tuple[str, ...], *, scheme: str, replica: str) -> None:
        """Asks the first server that answers, for a replica; `scheme`: see `ServerTables`."""
        self._urls = [ServerUrl.parse(url) for url in urls]
        self._scheme = scheme
        self._replica = replica
        self.history = TableHistory(self._definitions)

    def tables(self, target: str) -> ServerTables:
        """Returns the tables as a server has them now."""
        catalogue = self.catalogue()
        return ServerTables(
            catalogue,
            database=self._urls[0].database,
            scheme=self._scheme,
            defines=target.startswith(SERVER_SCHEMES),
            logs_cascades=self.logs_cascades,
            history=self.history,
        )

    def documents(self, place: Place) -> Documents:
        """Returns the reader of rows as documents."""
        tables = self.history.tables(self.catalogue(), None, place)
        documents = SourceDocuments(
            tables.known,
            logs_cascades=self.logs_cascades,
            unread=tables.unread,
            history=self.history,
        )
        return Documents(documents.rows, tables.kept)

    @cached_property
    def logs_cascades(self) -> bool:
        """Whether the source keeps its foreign keys above its storage (MySQL 9.6 and newer)."""
        found = self._asked(lambda query, _: query("SHOW VARIABLES LIKE %s", (_NATIVE,)))
        return [value for _, value in found] == ["OFF"]

    def catalogue(self) -> dict[str, SourceTable]:
        """Returns the tables of the server. Raises SourceLost if none answers."""
        return self._asked(lambda query, url: read_catalogue(query, url.database))

    def _definitions(
        self, executed: GtidSet
    ) -> tuple[Sequence[tuple[Gtid, PayloadStatement]], GtidSet]:
        """Reads the log of the first server that answers; see `definitions_after`."""
        log.info("reads_definitions", replica=self._replica, executed=str(executed))
        return self._first(lambda url: definitions_after(url, self._replica, executed))

    def _asked(self, ask: Callable[[Query, ServerUrl], Answer]) -> Answer:
        """Returns the answer of the first server that answers."""

        def asked(url: ServerUrl) -> Answer:
            with url.connect() as session, session.cursor() as cursor:
                return ask(partial(_query, cursor), url)

        return self._first(asked)

    def _first(self, ask: Callable[[ServerUrl], Answer]) -> Answer:
        failure: Exception | None = None
        for url in self._urls:
            try:
                return ask(url)
            except SourceLost as error:
                failure = error
        assert failure, "a replica has a source"
        raise failure

    def snapshot(self, threads: int) -> AbstractContextManager[Snapshot]:
        """Opens a snapshot of the first server, for so many threads."""
        url = self._urls[0]

        def connect() -> Any:
            session = url.connect(answer_seconds=COPY_ANSWER_SECONDS)
            session.cursorclass, session.decoders = SSCursor, {}
            return session

        return opened_snapshot(url, connect, threads)


def _query(cursor: Any, statement: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
    cursor.execute(statement, values)
    return list(cursor.fetchall())
