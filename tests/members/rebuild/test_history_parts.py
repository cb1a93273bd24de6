"""Certification logs say what members had read, also of one whose data folder is lost.

Method: a member on a log in memory keeps a certification log; copies of its store, as of earlier
and later, stand for other members.
"""

import shutil
from pathlib import Path

import pytest
from pyarrow import compute, parquet

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.errors.rebuild import DamagedHistory
from groupcert.members.rebuild.history_parts import HistoryPart, compare_history, histories_in
from groupcert.members.rebuild.holding import holding
from tests.members.process.test_lifecycle import living
from tests.members.rebuild.test_plan import copied, put
from tests.waiting import until


async def commit(folder: Path, *, messages: int = 1) -> None:
    """A member commits two transactions, after so many messages, and is stopped; a copy of its
    store is as of between them.
    """
    async with living(folder / "m1", certification_log=str(folder / "log")) as process:
        await process.online()
        for _ in range(messages):
            await process.runtime.submit([])
        await process.runtime.submit([put(b"first", 0)])
        process.runtime.save()
        copied(process, folder / "behind")
        await process.runtime.submit([put(b"second", 1)])
        await until(lambda: process.runtime.rows.status().length == 0)


def compared(data_folder: Path, log: Path) -> HistoryPart:
    """What the one history in a certification log says about a member."""
    read: list[int] = []
    ((name, files),) = histories_in([log]).items()
    with holding(data_folder) as found:
        part = compare_history(found, name, files, read.append)
    assert sum(read) or part.contradiction
    return part


def change_times(log: Path) -> Path:
    """Changes a time in each row of the largest file, and returns that."""
    file = max(log.glob("*.parquet"), key=lambda path: parquet.read_metadata(path).num_rows)
    table = parquet.read_table(file)
    place = table.schema.get_field_index("decided_us")
    later = compute.add(table.column("decided_us"), 1)
    parquet.write_table(table.set_column(place, table.schema.field(place), later), file)
    return file


async def test_a_history_agrees_with_its_member_and_names_what_another_one_lacks(
    tmp_path: Path,
) -> None:
    await commit(tmp_path)
    whole = compared(tmp_path / "m1", tmp_path / "log")
    assert (whole.compared, whole.lacking.count(), whole.contradiction) == (2, 0, None)
    behind = compared(tmp_path / "behind", tmp_path / "log")
    assert (behind.compared, behind.contradiction) == (1, None)
    assert behind.lacking.count() == 1
    with holding(tmp_path / "m1") as found:
        assert behind.lacking <= found.executed


async def test_another_history_of_the_same_group_contradicts(tmp_path: Path) -> None:
    await commit(tmp_path / "one")
    await commit(tmp_path / "other", messages=4)
    part = compared(tmp_path / "one" / "m1", tmp_path / "other" / "log")
    assert part.contradiction is not None
    what = part.contradiction.what
    assert "the certification log of m1 has transaction 1 as" in what
    assert f"message {part.log_sequence}" not in what


async def test_a_row_that_was_changed_proves_nothing(tmp_path: Path) -> None:
    await commit(tmp_path)
    changed = tmp_path / "changed"
    shutil.copytree(tmp_path / "log", changed)
    file = change_times(changed)
    with pytest.raises(DamagedHistory, match="does not fit the chain"):
        compared(tmp_path / "m1", changed)
    file.write_bytes(b"no Parquet")
    with pytest.raises(DamagedHistory, match="cannot be read"):
        compared(tmp_path / "m1", changed)
    with pytest.raises(InvalidSetting, match="a folder with files of a member's certification log"):
        histories_in([tmp_path / "m1"])
