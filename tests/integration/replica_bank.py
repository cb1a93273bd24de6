"""The accounts of tests/integration/replicas.py as tables of PostgreSQL or MariaDB.

Tables count the changes of each row by a trigger of the server: what is executed twice is counted
twice, whatever the replica says of itself.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.demo.local_group import LocalGroup
from tests.integration.replicas import TABLES, History, ReplicaProcess, Rows, account
from tests.servers import connect_mariadb

MAPPING = (
    "".join(
        f"""
[tables."{table}"]
table = "{table.replace(".", "_")}"
key = {{ id = "integer" }}
columns = {{ balance = "integer", changes = "integer" }}
"""
        for table in TABLES
    )
    + '\n[tables."*"]\n'
)


class Bank:
    """The accounts' tables in a database of one of the servers."""

    def __init__(self, kind: str, address: str, folder: Path) -> None:
        self.address = address
        self.is_postgresql = kind == "postgresql"
        self.mapping = folder / "mapping.toml"
        self.mapping.write_text(MAPPING)
        if self.is_postgresql:
            self.query(
                "CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN NEW.counted := OLD.counted + 1; RETURN NEW; END $$"
            )
        action = (
            "EXECUTE FUNCTION count_change()"
            if self.is_postgresql
            else "SET NEW.counted = OLD.counted + 1"
        )
        for table in self.tables:
            self.query(
                f"CREATE TABLE {table} (id integer PRIMARY KEY, balance integer NOT NULL,"
                " changes integer NOT NULL, counted integer NOT NULL DEFAULT 1)"
            )
            self.query(
                f"CREATE TRIGGER count_{table} BEFORE UPDATE ON {table} FOR EACH ROW {action}"
            )

    tables = tuple(table.replace(".", "_") for table in TABLES)

    def replica(
        self, folder: Path, group: LocalGroup, scheme: str, *arguments: str
    ) -> ReplicaProcess:
        """A replica of a group into these tables."""
        sources = list(group.addresses.values())
        return ReplicaProcess(
            folder, sources, self.address, scheme, "--mapping", str(self.mapping), *arguments
        )

    def connect(self) -> Any:
        """A session of the test's own; each statement commits."""
        if self.is_postgresql:
            return psycopg.connect(self.address, autocommit=True)
        return closing(connect_mariadb(self.address))

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Runs a statement in a new session; its rows."""
        with self.connect() as session, session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def rows(self) -> Rows:
        """All rows, in one snapshot, as the source has them."""
        with self.connect() as session:
            return self.rows_in(session)

    def rows_in(self, session: Any) -> Rows:
        """The same in a session that is there."""
        rows: Rows = {}
        with session.cursor() as cursor:
            cursor.execute(
                "BEGIN ISOLATION LEVEL REPEATABLE READ"
                if self.is_postgresql
                else "START TRANSACTION WITH CONSISTENT SNAPSHOT"
            )
            for name, table in zip(TABLES, self.tables, strict=True):
                cursor.execute(f"SELECT id, balance, changes FROM {table}")
                for number, balance, changes in cursor.fetchall():
                    rows[f"{name}/{number}".encode()] = account(balance, changes)
            cursor.execute("SELECT row_key, value FROM groupcert_rows")
            rows |= {bytes(key): bytes(value) for key, value in cursor.fetchall()}
            cursor.execute("COMMIT")
        return rows

    def accounts(self) -> list[tuple[Any, ...]]:
        """The accounts of the first table."""
        return self.query(f"SELECT id FROM {self.tables[0]}")

    def counted_otherwise(self) -> list[tuple[Any, ...]]:
        """Rows of which the server has counted other changes than their source."""
        selects = (f"SELECT * FROM {table} WHERE changes <> counted" for table in self.tables)
        return self.query(" UNION ALL ".join(selects))

    def executed(self, replica: str = "replica") -> GtidSet:
        """What is executed, as its tables have it."""
        saved = self.query("SELECT checkpoint FROM groupcert_checkpoint")
        executed = GtidSet()
        if saved:
            executed = Checkpoint.decode(saved[0][0].encode()).gtid_executed.copy()
        for source, number in self.query(
            "SELECT source, number FROM groupcert_executed"
            f" WHERE replica = '{replica}' AND part = ''"
        ):
            executed.add_number(source, number)
        return executed

    def make_other_rows(self) -> None:
        """The table for all other rows, which the replica makes only if it is missing."""
        key, value = ("bytea",) * 2 if self.is_postgresql else ("varbinary(3072)", "longblob")
        self.query(
            f"CREATE TABLE groupcert_rows (row_key {key} PRIMARY KEY, value {value} NOT NULL)"
        )

    def own_tables(self) -> set[str]:
        """The names of the replica's own tables."""
        rows = self.query(
            "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'groupcert%'"
            f" AND table_schema = {'current_schema()' if self.is_postgresql else 'DATABASE()'}"
        )
        return {name for (name,) in rows}

    def in_part(self) -> int:
        """Transactions of which a part is executed, and not all."""
        rows = self.query("SELECT source, number FROM groupcert_executed WHERE part <> ''")
        executed = self.executed()
        return len(
            {(source, number) for source, number in rows if Gtid(source, number) not in executed}
        )

    def prepared(self) -> int:
        """Branches that are prepared and not settled."""
        if self.is_postgresql:
            return len(self.query("SELECT 1 FROM pg_prepared_xacts"))
        return len(self.query("XA RECOVER"))


def assert_whole(bank: Bank, history: History, *, is_exact: bool = True) -> None:
    """The replica has all that its source has, and executed it once."""
    assert bank.rows() == history.rows
    assert bank.executed() == history.gtids
    assert bank.prepared() == 0
    if is_exact:
        assert bank.counted_otherwise() == []
