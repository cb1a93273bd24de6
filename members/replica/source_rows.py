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
from ...applier.mysql_logs.table_maps import keys_from
from ...applier.mysql_servers.server_url import ServerUrl
from ...applier.mysql_servers.snapshot import Snapshot, opened_snapshot
from ...applier.mysql_servers.source_errors import SourceLost
from ...applier.targets.rocksdb import Decode
from ...applier.targets.source_documents import SourceDocuments
from ...applier.targets.source_tables import ServerTables
from ...applier.targets.sql_schema import SqlSchema
from ...applier.targets.sql_tables import SourceTables
from ...certifier.write_set import TableKeys
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

    def decode(self) -> Decode:
        """Returns the reader of payloads for the embedded store."""
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

    def decode(self) -> Decode:
        """Returns the reader of row changes."""
        return decode_changes


class ServerRows:
    """The rows of a MySQL or MariaDB server's tables."""

    def __init__(self, urls: tuple[str, ...], *, scheme: str) -> None:
        """Asks the first server that answers; `scheme`: see `ServerTables`."""
        self._urls = [ServerUrl.parse(url) for url in urls]
        self._scheme = scheme
        self.keys: dict[str, TableKeys] = {}
        """Keys of the tables by name, as of when the catalogue was read last."""

    def tables(self, target: str) -> ServerTables:
        """Returns the tables as a server has them now."""
        catalogue = self.catalogue()
        return ServerTables(
            catalogue,
            database=self._urls[0].database,
            scheme=self._scheme,
            defines=target.startswith(SERVER_SCHEMES),
            logs_cascades=self.logs_cascades,
        )

    def decode(self) -> Decode:
        """Returns the reader of rows as documents."""
        catalogue = self.catalogue()
        return SourceDocuments(catalogue, logs_cascades=self.logs_cascades).rows

    @cached_property
    def logs_cascades(self) -> bool:
        """Whether the source keeps its foreign keys above its storage (MySQL 9.6 and newer)."""
        found = self._asked(lambda query, _: query("SHOW VARIABLES LIKE %s", (_NATIVE,)))
        return [value for _, value in found] == ["OFF"]

    def catalogue(self) -> dict[str, SourceTable]:
        """Returns the tables of the server. Raises SourceLost if none answers."""
        catalogue = self._asked(lambda query, url: read_catalogue(query, url.database))
        self.keys.update(keys_from(catalogue))
        return catalogue

    def _asked(self, ask: Callable[[Query, ServerUrl], Answer]) -> Answer:
        """Returns the answer of the first server that answers."""
        failure: Exception | None = None
        for url in self._urls:
            try:
                with url.connect() as session, session.cursor() as cursor:
                    return ask(partial(_query, cursor), url)
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
