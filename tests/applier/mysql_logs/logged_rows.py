"""Rows of a server's own log, and what its catalogue says of their tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import pymysql

from groupcert.applier.mysql_logs.compression import payload_events
from groupcert.applier.mysql_logs.events import (
    Event,
    EventReader,
    EventType,
    FormatDescription,
)
from groupcert.applier.mysql_logs.row_events import ROWS
from groupcert.applier.mysql_logs.row_payload import TableRows, packed, table_rows
from groupcert.applier.mysql_logs.source_catalogue import SourceColumn, SourceTable
from groupcert.applier.mysql_logs.system_versions import PERIOD

Session: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"


@contextmanager
def plain_session(port: int, database: str, user: str = "root") -> Iterator[Session]:
    """A session in UTC that gives values as the server prints them."""
    session = pymysql.connect(
        host="127.0.0.1",
        port=port,
        user=user,
        autocommit=True,
        charset="utf8mb4",
        init_command="SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'",
    )
    session.decoders = {}
    execute(session, f"CREATE DATABASE IF NOT EXISTS {database}", f"USE {database}")
    with session:
        yield session


def execute(session: Session, *statements: str) -> list[tuple[object, ...]]:
    """Executes statements; returns the rows of the last one."""
    with session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return [tuple(row) for row in cursor.fetchall()]


def catalogue_of(session: Session, database: str) -> dict[str, SourceTable]:
    """What information_schema says of a database's tables."""
    columns: dict[str, list[SourceColumn]] = {}
    for table, name, data_type, column_type, charset, nullable, extra, expression in execute(
        session,
        "SELECT table_name, column_name, data_type, column_type, character_set_name, is_nullable, "
        "extra, generation_expression FROM information_schema.columns "
        f"WHERE table_schema = '{database}' ORDER BY table_name, ordinal_position",
    ):
        columns.setdefault(str(table), []).append(
            SourceColumn(
                name=str(name),
                data_type=str(data_type),
                column_type=text(column_type),
                charset=None if charset is None else str(charset),
                nullable=nullable == "YES",
                generated=generated(str(extra), str(expression)),
            )
        )
    keys: dict[str, dict[str, list[str]]] = {}
    for table, index, column in execute(
        session,
        "SELECT table_name, index_name, column_name FROM information_schema.statistics "
        f"WHERE table_schema = '{database}' AND non_unique = 0 ORDER BY 1, 2, seq_in_index",
    ):
        keys.setdefault(str(table), {}).setdefault(str(index), []).append(str(column))
    found = {}
    for table_name, its_columns in columns.items():
        unique = {index: tuple(names) for index, names in keys.get(table_name, {}).items()}
        found[f"{database}.{table_name}"] = SourceTable(
            database=database,
            name=table_name,
            columns=tuple(its_columns),
            primary_key=unique.pop("PRIMARY", ()),
            unique_keys=unique,
        )
    return found


def generated(extra: str, expression: str) -> str:
    """How a column is made: empty, `virtual`, `stored`, or the begin or end of a row's version."""
    if expression.lower() in PERIOD:
        return expression.lower()
    kind, found, _ = extra.partition(" GENERATED")
    return kind.lower() if found else ""


def logged(session: Session, folder: Path, work: Callable[[], object]) -> Path:
    """Does some work; returns the log file that has it and nothing else."""
    execute(session, "FLUSH BINARY LOGS")
    name = str(execute(session, "SHOW BINARY LOGS")[-1][0])
    work()
    execute(session, "FLUSH BINARY LOGS")
    return folder / name


def logged_events(path: Path) -> Iterator[tuple[Event, FormatDescription]]:
    """The table maps and row events of a whole log, and its format."""
    with path.open("rb") as file:
        reader = EventReader(file, str(path), path.stat().st_size)
        for outer in reader:
            inner = outer.type == EventType.TRANSACTION_PAYLOAD
            for event in payload_events(outer) if inner else [outer]:
                if event.type in ROWS or event.type == EventType.TABLE_MAP:
                    yield event, reader.format


def payload_of(path: Path) -> bytes:
    """The table maps and row events of a whole log, packed."""
    return b"".join(packed(*each) for each in logged_events(path))


def rows_of(path: Path, catalogue: Mapping[str, SourceTable]) -> list[TableRows]:
    """The rows of a whole log, in its order."""
    return list(table_rows(payload_of(path), catalogue))


def text(value: object) -> str:
    """A value as the server prints it."""
    if isinstance(value, bytes):
        return value.decode()
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def shown(value: object) -> object:
    """A value of a row as a plain session gives it: text, or bytes."""
    return value if value is None or isinstance(value, bytes) else text(value)


def selected(session: Session, table: str, columns: Sequence[str]) -> list[tuple[object, ...]]:
    """All rows of a table as `shown` gives them, by the first column."""
    return execute(session, f"SELECT {', '.join(columns)} FROM {table} ORDER BY {columns[0]} + 0")
