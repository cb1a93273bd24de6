"""The rows of a replica's source, as its target reads them: of a group, or of a server's tables.

A server's tables are looked up when the target is opened, and so again when a table map does not
fit them any more.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog
from pymysql.cursors import SSCursor

from ...applier.errors import UnsuitableTarget
from ...applier.mysql_logs.source_catalogue import SourceTable, read_catalogue
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

COPY_ANSWER_SECONDS = 3_600.0
"""Seconds in which a server has to send more rows of a table, or get its lock."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class SourceRows(Protocol):
    """Reads the payloads of one kind of source."""

    def tables(self, target: str) -> SourceTables:
        """Returns the tables for an SQL target, as they are now."""
        ...

    def decode(self) -> Decode:
        """Returns the reader of payloads for the embedded store."""
        ...


class GroupRows:
    """The rows of a group, by a mapping where the target is an SQL server."""

    def __init__(self, mapping: Path | None) -> None:
        self._mapping = mapping

    def tables(self, target: str) -> SourceTables:
        """Returns the mapping. Raises UnsuitableTarget if it is missing or malformed."""
        if self._mapping is None:
            raise UnsuitableTarget(
                target=target.partition("@")[2] or target,
                problem="there is no mapping of rows to its tables",
                expected="--mapping FILE, a TOML file (see applier/targets/sql_schema.py)",
            )
        text = self._mapping.read_text(encoding="utf-8")
        return SqlSchema.parse(text, decode_changes, str(self._mapping))

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
        )

    def decode(self) -> Decode:
        """Returns the reader of rows as documents."""
        catalogue = self.catalogue()
        return SourceDocuments(catalogue).rows

    def catalogue(self) -> dict[str, SourceTable]:
        """Returns the tables of the server. Raises SourceLost if none answers."""
        failure: Exception | None = None
        for url in self._urls:
            try:
                with url.connect() as session, session.cursor() as cursor:
                    catalogue = read_catalogue(partial(_query, cursor), url.database)
                    self.keys.update(keys_from(catalogue))
                    return catalogue
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

        return opened_snapshot(connect, threads)


def _query(cursor: Any, statement: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
    cursor.execute(statement, values)
    return list(cursor.fetchall())
