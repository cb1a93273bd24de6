"""Files of a certification log: takes rows, writes Parquet, each file complete or not there.

The rule it keeps: a file is written under another name, synced, and renamed when it is complete; so
a reader of the folder at any moment reads complete files only. Rows wait in memory, as columns, for
one row group at most, which ends by rows or by bytes. A file of the same name is replaced: a writer
that was killed writes the same rows again.
"""

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import chain as chained
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from ...certifier.history.schema import COLUMNS, FORMAT_VERSION, Cursor, Row, link, text_of
from ..host.sync import sync

ROW_GROUP_ROWS = 32_768
ROW_GROUP_BYTES = 32 << 20
"""Bytes of columns in memory."""
TABLE_ROWS = 1_024
"""Rows that are turned into columns at a time: as Python objects they take ten times as much."""
TABLE_BYTES = 1 << 20
"""Bytes of the texts that are chained."""
SUFFIX = ".parquet"
UNFINISHED_SUFFIX = ".unfinished"
FULL_DISK_NUMBERS = {errno.ENOSPC, errno.EDQUOT}
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
    "number",
    "place",
    "version",
    "gtid_number",
    "sequence_number",
    "last_committed",
    "snapshot_version",
    "started_tick",
    "committed_tick",
    "winner_version",
    "decided_us",
    "started_us",
    "executed_us",
    "committed_us",
]
_CONSTANTS = ["format_version", "worker", "domain_id"]
_HASHES = ["write_set.list.element", "read_set.list.element", "chain"]


class LogFile(NamedTuple):
    """A file that was written, its number of rows, and the cursor of the history after it."""

    path: Path
    rows: int
    cursor: Cursor


class Abandoned(Exception):
    """The file is not wanted any more; it was not written."""


def write_file(
    folder: Path,
    rows: Iterable[Row],
    cursor: Cursor,
    bytes_max: int | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> LogFile | None:
    """Writes the rows as the next file of a history that was written up to `cursor`; None if there
    are none. Rows get their number and their chain here.

    Args:
        bytes_max: rows are left over after the row group that makes the file so large.
        is_wanted: asked when all is written, before the file gets its name.

    Returns: when the file and its name are on disk.
    Raises:
        OSError: it could not be written; nothing is left. Of a full disk the file is named.
        Abandoned: it is not wanted any more; nothing is left.
    """
    remaining = iter(rows)
    first = next(remaining, None)
    if first is None:
        return None
    path = folder / file_name(first)
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}{UNFINISHED_SUFFIX}")
    _make(folder)
    last = cursor
    try:
        with unfinished.open("xb") as sink, writer(sink) as file:
            group: list[pa.Table] = []
            group_rows = group_bytes = 0
            for table, end in _tables(chained([first], remaining), cursor):
                last = end
                group.append(table)
                group_rows += table.num_rows
                group_bytes += table.nbytes
                if group_rows >= ROW_GROUP_ROWS or group_bytes >= ROW_GROUP_BYTES:
                    file.write_table(pa.concat_tables(group), row_group_size=group_rows)
                    group.clear()
                    group_rows = group_bytes = 0
                    if bytes_max is not None and sink.tell() >= bytes_max:
                        break
            if group:
                file.write_table(pa.concat_tables(group), row_group_size=group_rows)
        sync(unfinished)
        if not is_wanted():
            raise Abandoned
        unfinished.rename(path)
        sync(folder)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in FULL_DISK_NUMBERS:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise
    return LogFile(path, last.number - cursor.number, last)


def remove_unfinished(folder: Path, observer: str) -> None:
    """Removes what killed writers of a member have left, of any history."""
    for path, _, _ in _files(folder, observer, rf".*{re.escape(UNFINISHED_SUFFIX)}"):
        path.unlink(missing_ok=True)


def rows_beyond(folder: Path, observer: str, history: str, place: int) -> list[int]:
    """Returns the number of rows of each file of a history that begins after a place.

    Raises:
        OSError: one cannot be read; it is named.
    """
    found = sorted(_files(folder, observer, ""))
    return [
        _rows_in(path)
        for path, of_history, first in found
        if of_history == history and first > place
    ]


def rows_after(
    folder: Path, observer: str, history: str, place: int
) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows in the files of a history that follow a place, in pages."""
    found = sorted(each[::-1] for each in _files(folder, observer, "") if each[1] == history)
    following = [first for first, _, _ in found[1:]]
    for (_, _, path), next_first in zip_longest(found, following):
        if next_first is None or next_first > place:
            for batch in parquet.ParquetFile(path).iter_batches(TABLE_ROWS):
                if rows := [row for row in batch.to_pylist() if row["place"] > place]:
                    yield rows


def file_name(first: Row) -> str:
    """Returns the name of the file that begins with a row; names sort as the files of a history do.

    >>> file_name({"observer": "m1", "history": "7f", "place": 0xABC})
    'm1-7f-0000000000000abc.parquet'
    """
    observer, history = first["observer"], first["history"]
    assert isinstance(observer, str) and isinstance(history, str)
    return f"{observer}-{history}-{_place(first):016x}{SUFFIX}"


def prepare() -> None:
    """Loads what PyArrow loads at its first column: with pandas, half a second."""
    pa.array([0])


def as_table(rows: list[Row]) -> pa.Table:
    """Returns rows as columns; their chain must be there."""
    present = set().union(*rows)
    columns = [
        pa.array([row.get(name) for row in rows], kind)
        if name in present
        else pa.nulls(len(rows), kind)
        for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _tables(rows: Iterable[Row], cursor: Cursor) -> Iterator[tuple[pa.Table, Cursor]]:
    """Yields the rows that follow the cursor, numbered and chained, as columns, with the cursor
    after each table. Takes no row before it is needed.
    """
    number, _, chain = cursor
    waiting: list[Row] = []
    size = 0
    for row in rows:
        number += 1
        row["number"] = number
        text = text_of(row)
        row["chain"] = chain = link(chain, text)
        waiting.append(row)
        size += len(text)
        if len(waiting) == TABLE_ROWS or size >= TABLE_BYTES:
            yield as_table(waiting), Cursor(number, _place(row), chain)
            waiting, size = [], 0
    if waiting:
        yield as_table(waiting), Cursor(number, _place(waiting[-1]), chain)


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


def _place(row: Row) -> int:
    place = row["place"]
    assert isinstance(place, int)
    return place


def _rows_in(path: Path) -> int:
    """Returns the number of rows in a file."""
    try:
        rows: int = parquet.read_metadata(path).num_rows
    except (OSError, pa.ArrowException) as error:
        advice = "put the whole file there, or remove it"
        raise OSError(f"{path} cannot be read ({error}): {advice}") from error
    return rows


def _files(folder: Path, observer: str, ending: str) -> Iterator[tuple[Path, str, int]]:
    """Yields files of a member, with their history and their first place. `ending`: a pattern of
    what follows the name.
    """
    digits = "([0-9a-f]{16})"
    name = re.compile(f"{re.escape(observer)}-{digits}-{digits}{re.escape(SUFFIX)}{ending}")
    for path in folder.iterdir() if folder.is_dir() else ():
        if found := name.fullmatch(path.name):
            yield path, found[1], int(found[2], 16)


def _make(folder: Path) -> None:
    """Makes a folder, and those above it, with their names on disk."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
