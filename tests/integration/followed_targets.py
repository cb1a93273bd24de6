"""Targets of replicas that follow a server, as tests see them beside the replica's process."""

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from rocksdict import AccessType

from groupcert.applier.targets.first_copy import CopyRecord
from groupcert.applier.targets.rocksdb import ROW_PREFIX
from groupcert.applier.targets.source_documents import COPY_KEY, PREPARED_PREFIX
from groupcert.certifier.storage.store import Family, open_families
from tests.servers import connect_mariadb

BINARY_LOG = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW")
"""What a MariaDB needs to be followed."""
KINDS = ("mariadb", "postgresql", "rocksdb")


class SqlDatabase:
    """A database of a server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self) -> Any:
        """A session; each statement commits."""
        if self.url.startswith("postgres"):
            return psycopg.connect(self.url, autocommit=True)
        return connect_mariadb(self.url)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Executes a statement; returns its rows."""
        with closing(self.connect()) as session, session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def record(self) -> CopyRecord | None:
        """The record of a copy that is not finished, in the replica's own table."""
        try:
            rows = self.execute(
                "SELECT checkpoint FROM groupcert_checkpoint WHERE replica LIKE 'first copy %'"
            )
        except Exception:  # There is no such table yet; drivers say it in their own ways.
            return None
        return CopyRecord.decode(rows[0][0]) if rows else None

    def prepared(self) -> set[str]:
        """The xids in the replica's own table."""
        return {xid for (xid,) in self.execute("SELECT xid FROM groupcert_prepared")}


class EmbeddedStore:
    """A store of the replica's own; read beside its process, as far as it is flushed."""

    def __init__(self, folder: Path) -> None:
        self.url = f"rocksdb:{folder}"
        self.folder = folder

    def read(self, family: Family) -> dict[bytes, bytes]:
        """All that is stored in a family; nothing while there is no store."""
        try:
            store = open_families(self.folder, AccessType.read_only())
        except Exception:  # There is none yet.
            return {}
        with closing(store):
            rows = store.get_column_family(family.value).items()
            return {key: value for key, value in rows if isinstance(key, bytes)}

    def put(self, row: str, value: bytes) -> None:
        """Writes a row, while no process has the store."""
        with closing(open_families(self.folder, AccessType.read_write())) as store:
            store.get_column_family(Family.DATA.value)[ROW_PREFIX + row.encode()] = value

    def record(self) -> CopyRecord | None:
        """The record in the store."""
        text = self.read(Family.META).get(COPY_KEY)
        return CopyRecord.decode(text.decode()) if text else None

    def prepared(self) -> set[str]:
        """The xids in the store."""
        keys = [key for key in self.read(Family.DATA) if key.startswith(PREPARED_PREFIX)]
        return {key.removeprefix(PREPARED_PREFIX).decode() for key in keys}


FollowedTarget = SqlDatabase | EmbeddedStore


def whole(target: FollowedTarget) -> set[str]:
    """The tables that are whole, by their names in the database, while a copy is not finished."""
    record = target.record()
    return {name.partition(".")[2] for name in record.whole} if record else set()


def followed_target(request: pytest.FixtureRequest, kind: str, folder: Path) -> FollowedTarget:
    """An empty target of a kind."""
    if kind == "rocksdb":
        return EmbeddedStore(folder / "store")
    return SqlDatabase(
        request.getfixturevalue("mariadb_url" if kind == "mariadb" else "target_dsn")
    )
