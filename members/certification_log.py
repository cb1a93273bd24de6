"""The files of a certification log: rows in, Parquet out, each file whole or not there.

The rule it keeps: a file is written under another name, synced, and renamed when it is whole; so
who reads a folder at any moment reads whole files only. Rows wait in memory, as columns, for one
row group at most. What was written once under the same name is replaced: a writer that was killed
writes the same rows again.
"""

from collections.abc import Iterable, Iterator
from itertools import chain as chained
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet

from certifier.history import COLUMNS, FORMAT_VERSION, Cursor, Row, link, text_of
from members.sync import sync

ROW_GROUP_ROWS = 32_768
TABLE_ROWS = 1_024
"""Rows that are turned into columns at a time: as Python's objects they take ten times as much."""
SUFFIX = ".parquet"
UNFINISHED_SUFFIX = ".unfinished"
_ARROW_TYPES = {
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "list<int64>": pa.list_(pa.int64()),
    "list<string>": pa.list_(pa.string()),
}
SCHEMA = pa.schema(
    [(column.name, _ARROW_TYPES[column.kind]) for column in COLUMNS],
    metadata={"groupcert.certification_log.format_version": str(FORMAT_VERSION)},
)
_COUNTERS = [
    *("number", "place", "version", "gtid_number", "sequence_number", "last_committed"),
    *("snapshot_version", "started_tick", "committed_tick", "winner_version"),
    *("decided_us", "started_us", "committed_us"),
]
_CONSTANTS = ["format_version", "worker", "domain_id"]
_HASHES = ["write_set.list.element", "read_set.list.element", "chain"]


class LogFile(NamedTuple):
    """A file that was written, its rows, and how far the history is written now."""

    path: Path
    rows: int
    cursor: Cursor


def write_file(
    folder: Path, rows: Iterable[Row], cursor: Cursor, bytes_max: int | None = None
) -> LogFile | None:
    """Writes the rows as the next file of a history that was written up to `cursor`; None if there
    are none. Rows get their number and their chain here.

    `bytes_max`: rows are left over after the row group that makes the file so large.

    Returns: when the file and its name are on disk.
    Raises:
        OSError: it could not be written; nothing is left.
    """
    remaining = iter(rows)
    first = next(remaining, None)
    if first is None:
        return None
    path = folder / file_name(first)
    unfinished = path.with_name(path.name + UNFINISHED_SUFFIX)
    folder.mkdir(parents=True, exist_ok=True)
    before = cursor.number
    try:
        with unfinished.open("wb") as sink, writer(sink) as file:
            tables: list[pa.Table] = []
            for group in _groups(chained([first], remaining)):
                cursor = _chain(group, cursor)
                tables.append(as_table(group))
                if len(tables) == ROW_GROUP_ROWS // TABLE_ROWS:
                    file.write_table(pa.concat_tables(tables), row_group_size=ROW_GROUP_ROWS)
                    tables.clear()
                    if bytes_max is not None and sink.tell() >= bytes_max:
                        break
            if tables:
                file.write_table(pa.concat_tables(tables), row_group_size=ROW_GROUP_ROWS)
        sync(unfinished)
        unfinished.rename(path)
        sync(folder)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return LogFile(path, cursor.number - before, cursor)


def remove_unfinished(folder: Path, history: str = "*") -> None:
    """Removes what a writer of a history that was killed has left."""
    for path in folder.glob(f"*-{history}-*{SUFFIX}{UNFINISHED_SUFFIX}"):
        path.unlink()


def file_name(first: Row) -> str:
    """The name of the file that begins with a row; names sort as the files of a history do.

    >>> file_name({"observer": "m1", "history": "7f", "place": 0xABC})
    'm1-7f-0000000000000abc.parquet'
    """
    observer, history, place = first["observer"], first["history"], first["place"]
    assert isinstance(observer, str) and isinstance(history, str) and isinstance(place, int)
    return f"{observer}-{history}-{place:016x}{SUFFIX}"


def prepare() -> None:
    """Has PyArrow load what it loads at its first column: with pandas there, half a second."""
    pa.array([0])


def as_table(rows: list[Row]) -> pa.Table:
    """Rows as columns; their chain must be there."""
    present = set().union(*rows)
    columns = [
        pa.array([row.get(name) for row in rows], kind)
        if name in present
        else pa.nulls(len(rows), kind)
        for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _chain(rows: list[Row], cursor: Cursor) -> Cursor:
    """Numbers and chains the rows that follow the cursor, and returns where it is then."""
    number, chain = cursor.number, cursor.chain
    for row in rows:
        number += 1
        row["number"] = number
        row["chain"] = chain = link(chain, text_of(row))
    place = rows[-1]["place"]
    assert isinstance(place, int)
    return Cursor(number, place, chain)


def writer(sink: object) -> parquet.ParquetWriter:
    return parquet.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        use_dictionary=[
            *_CONSTANTS,
            *(
                column.name
                for column in COLUMNS
                if column.kind == "string" and column.name != "transaction_id"
            ),
        ],
        column_encoding={
            **dict.fromkeys(_COUNTERS, "DELTA_BINARY_PACKED"),
            **dict.fromkeys(_HASHES, "PLAIN"),
        },
    )


def _groups(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while group := list(islice(rows, TABLE_ROWS)):
        yield group
