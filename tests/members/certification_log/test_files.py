"""Files of a certification log: where one ends, what it takes of memory, what it leaves behind."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from groupcert.certifier.history.schema import Cursor, Row
from groupcert.members.certification_log import files as certification_log
from groupcert.members.certification_log.files import (
    Abandoned,
    remove_unfinished,
    rows_beyond,
    write_file,
)
from groupcert.members.host.sync import sync
from tests.audit.histories import Workload, random_order, rows_of
from tests.members.certification_logs import histories_in


def test_a_file_ends_when_it_is_large_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certification_log, "ROW_GROUP_ROWS", 64)
    monkeypatch.setattr(certification_log, "TABLE_ROWS", 16)
    workload = Workload()
    rows = iter(rows_of(random_order(3, workload), "m1", workload))
    cursor, counts = Cursor(), []
    while file := write_file(tmp_path, rows, cursor, bytes_max=20_000):
        cursor = file.cursor
        counts.append(file.rows)
    assert len(counts) > 1
    assert all(count % 64 == 0 for count in counts[:-1])
    (found,) = histories_in(tmp_path).values()
    assert len(found) == sum(counts) == cursor.number


def test_an_error_leaves_nothing_unfinished(tmp_path: Path) -> None:
    def broken() -> Any:
        yield from rows_of(random_order(3, Workload()), "m1", Workload())
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        write_file(tmp_path, broken(), Cursor())
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/m1-[0-9a-f-]+\.parquet'"):
        write_file(tmp_path, rows_of(random_order(3, Workload()), "m1", Workload()), Cursor())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_syncs_no_folder_takes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fsync = os.fsync

    def refuse(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode) or refuses_files:
            raise OSError(number, os.strerror(number))
        fsync(handle)

    refuses_files = False

    monkeypatch.setattr(os, "fsync", refuse)
    rows = rows_of(random_order(3, Workload()), "m1", Workload())
    file = write_file(tmp_path / "new", rows, Cursor())
    assert file and file.path.is_file()
    refuses_files = True
    with pytest.raises(OSError, match=os.strerror(number)):
        sync(file.path)


@pytest.mark.parametrize("length", [0, 3, 100])
def test_a_later_file_that_is_not_whole_is_an_error_that_names_it(
    tmp_path: Path, length: int
) -> None:
    file = write_file(tmp_path, rows_of(random_order(3, Workload()), "m1", Workload()), Cursor())
    assert file
    history = "0123456789abcdef"
    path = file.path.rename(tmp_path / f"m1-{history}-{0:016x}.parquet")
    assert rows_beyond(tmp_path, "m1", history, -1) == [file.rows]
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(OSError, match=rf"{path.name} cannot be read .*: put the whole"):
        rows_beyond(tmp_path, "m1", history, -1)


def test_a_file_that_nobody_waits_for_gets_no_name(tmp_path: Path) -> None:
    rows = rows_of(random_order(3, Workload()), "m1", Workload())
    with pytest.raises(Abandoned):
        write_file(tmp_path, iter(rows), Cursor(), is_wanted=lambda: False)
    assert list(tmp_path.iterdir()) == []


def test_rows_with_many_items_wait_neither_as_objects_nor_as_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of rows, as rows of a file and as rows in memory, ends by its bytes as well."""
    tables = []

    def as_table(rows: list[Row]) -> pa.Table:
        tables.append(len(rows))
        return made(rows)

    made = certification_log.as_table
    monkeypatch.setattr(certification_log, "as_table", as_table)
    monkeypatch.setattr(certification_log, "ROW_GROUP_BYTES", 1 << 20)
    rows = rows_of(random_order(3, Workload()), "m1", Workload())[:40]
    for row in rows:
        row["write_set"] = list(range(-(2**63), 10_000 - 2**63))
    file = write_file(tmp_path, iter(rows), Cursor())
    assert file is not None and file.rows == 40
    assert max(tables) <= 6, "20 bytes an item, 10,000 items a row, 1 MiB"
    metadata = parquet.read_metadata(file.path)
    groups = [metadata.row_group(each).num_rows for each in range(metadata.num_row_groups)]
    assert sum(groups) == 40
    assert max(groups) <= 18, "8 bytes an item, and the table that is the last one"


def test_a_folder_that_is_made_is_on_disk_with_those_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(certification_log, "sync", synced.append)
    rows = rows_of(random_order(3, Workload()), "m1", Workload())
    folder = tmp_path / "logs" / "m1"
    assert write_file(folder, iter(rows), Cursor())
    assert synced[:2] == [tmp_path, tmp_path / "logs"]
    assert synced[-1] == folder


def test_what_writers_of_the_member_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    history, place = "0123456789abcdef", "00000000000000a0"
    left = [f"m1-{history}-{place}.parquet{end}.unfinished" for end in ("", ".0a0b0c0d")]
    kept = [
        f"m1-{history}-{history}-{place}.parquet.0a0b0c0d.unfinished",
        f"m11-{history}-{place}.parquet.0a0b0c0d.unfinished",
        f"m1-{history}-{place}.parquet",
    ]
    for name in left + kept:
        (tmp_path / name).write_bytes(b"")
    remove_unfinished(tmp_path, "m1")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
