"""Binary logs as work: stamps, lock intervals and names of what a log says."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.mysql_logs.binary_log_reader import (
    BinaryLogReader,
    BinaryLogTransaction,
    read_binary_log,
)
from groupcert.applier.whatif import binary_log_work, scheme_comparison
from groupcert.applier.whatif.binary_log_work import BinaryLogWork
from groupcert.applier.whatif.costs import Costs
from groupcert.applier.whatif.dependencies import Dependencies
from groupcert.applier.whatif.scheme_comparison import LINES, run_line, sample_of
from groupcert.applier.whatif.whole_tables import SET_MAX, SET_MIN, WholeTables
from groupcert.applier.whatif.workload import Work, Workload, load
from tests.applier.mysql_logs.transactions import NOTHING, UUID, writes

SERVER_LOGS = Path(__file__).parents[2] / "data" / "server-logs"
MARIADB, MYSQL = "mariadb-10.11-full-metadata", "mysql-9.7.4-writeset-foreign-keys"


def read(*files: list[BinaryLogTransaction]) -> list[Work]:
    """The work of a log's files."""
    reader = BinaryLogWork()
    return [work for log in files for work in reader.read("log.1", log)]


def test_stamps_by_write_sets_are_those_of_complete_snapshots() -> None:
    found = read([writes(1), writes(2), writes(1, 2), NOTHING, writes(3)])
    stamps = [(one.last_committed, one.sequence_number) for one in found]
    assert stamps == [(1, 2), (1, 3), (3, 4), (4, 5), (5, 6)]
    assert [one.rows for one in found] == [1, 1, 2, 0, 1]


def test_the_lock_interval_is_the_sources_own_where_it_has_stamps() -> None:
    found = read(
        [
            writes(1, last_committed=0, sequence_number=1),
            writes(2, last_committed=0, sequence_number=2),
            writes(3, last_committed=2, sequence_number=3),
            writes(4, last_committed=3, sequence_number=3),
        ]
    )
    assert [one.lock_interval for one in found] == [1, 2, 1, 1]
    assert [one.header.commit_parent for one in found] == [1, 1, 3, 4]


def test_a_lock_interval_counts_what_the_log_has() -> None:
    """A relay log lacks what its replica had already, here 9 to 11."""
    log = [
        writes(number, last_committed=last, sequence_number=number)
        for last, number in ((5, 7), (5, 8), (8, 12), (7, 13), (0, 1), (0, 2))
    ]
    found = read(log)
    assert [one.lock_interval for one in found] == [1, 2, 1, 3, 1, 2]
    assert [one.header.commit_parent for one in found] == [1, 1, 3, 2, 5, 5]


def test_group_commits_are_lock_intervals_where_there_are_no_stamps() -> None:
    group = [writes(item, commit_id=7, domain_id=1) for item in (1, 2, 3)]
    other = [writes(4, commit_id=7, domain_id=2), writes(5), writes(6)]
    found = read([*group, *other])
    assert [one.lock_interval for one in found] == [1, 2, 3, 1, 1, 1]
    assert [one.header.commit_parent for one in found] == [1, 1, 1, 4, 5, 6]
    assert [one.header.commit_id for one in found] == [7, 7, 7, 7, 0, 0]


def test_a_new_file_is_a_rotation_and_ends_group_commits() -> None:
    found = read([writes(1, commit_id=7)], [writes(2, commit_id=7), writes(1)])
    assert found[1] == Work(None)
    assert [one.lock_interval for one in found if one.gtid] == [1, 1, 1]
    assert found[3].last_committed == 2


def test_names_are_gtids_or_else_places_in_the_file() -> None:
    found = read([writes(1, gtid=f"{UUID}:5"), writes(2, gtid="0-1-42"), writes(3, offset=904)])
    assert [(one.gtid.source, one.gtid.number) for one in found if one.gtid] == [
        (UUID, 5),
        ("0-1", 42),
        ("log.1", 904),
    ]


def unnamed(item: int, **more: Any) -> BinaryLogTransaction:
    """A transaction on the table a.t, which stands for its rows, and one row of another."""
    return NOTHING._replace(items=(7, item), keys=("a.t", f"a.u/{item}"), row_count=2, **more)


def followed(*log: BinaryLogTransaction) -> list[set[int]]:
    """The transactions that each one follows, by their numbers from 0 on."""
    dependencies = load(read(list(log)), Costs()).dependencies
    return [{dependencies.followed[edge] for edge in edges} for _, edges in dependencies.edges()]


def test_a_group_commit_does_not_wait_for_itself_where_a_table_stands_for_its_rows() -> None:
    groups = [unnamed(number, commit_id=1 + number // 3) for number in range(6)]
    assert followed(*groups) == [set()] * 3 + [{0, 1, 2}] * 3
    stamps = [(one.last_committed, one.sequence_number) for one in read([*groups, unnamed(9)])]
    assert stamps == [(1, 2), (1, 3), (1, 4), (4, 5), (4, 6), (4, 7), (7, 8)]
    assert followed(unnamed(1), unnamed(2)) == [set(), {0}], "a group of one"
    assert followed(unnamed(5, commit_id=4), unnamed(5, commit_id=4)) == [set(), {0}], "by the row"


def test_overlapping_lock_intervals_do_not_wait_where_a_table_stands_for_its_rows() -> None:
    """The last two had their locks when the first was committed, and overlap with the second."""
    log = [
        unnamed(number, last_committed=last, sequence_number=number)
        for number, last in ((1, 0), (2, 0), (3, 1), (4, 1))
    ]
    assert followed(*log) == [set(), set(), {0}, {0}]


def test_sets_grow_while_writers_overlap_and_begin_anew_with_those_that_do_not() -> None:
    tables, sets = WholeTables(), list[int]()
    for position in range(1, 140):
        tables.items(7, position, position if position < 100 else 1)
        sets.append(tables._sets[7].number)
    assert list(Counter(sets).values())[:6] == [SET_MIN, SET_MIN, 8, 16, SET_MAX, SET_MAX]
    assert len(set(sets[100:])) == 39
    [first] = read([unnamed(0)])
    assert set(first.keys) == {"a.t/*", "a.u/0"}
    assert len(first.keys) == len(first.header.items) == 2 * SET_MIN + 1


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=120))
def test_a_writer_follows_just_those_that_were_committed_before_it_and_its_items_make_it_so(
    log: list[tuple[bool, int]],
) -> None:
    """Writers of one table among others, with lock intervals."""
    tables, by_items, by_entries = WholeTables(), Dependencies(), Dependencies()
    sets, before = [], []
    numbers: dict[int, int] = {}
    for entry, (writes_table, length) in enumerate(log):
        if not writes_table:
            continue
        interval = min(length, entry + 1)
        before.append({numbers[each] for each in numbers if each <= entry - interval})
        by_items.add(tables.items(7, entry, interval), None, alone=False)
        sets.append(tables._sets[7].number)
        followed = [numbers[each] for each in tables.followed(7, entry, interval)]
        by_entries.add([], None, alone=False, follows=followed)
        numbers[entry] = len(numbers)
    assert reaches(by_entries) == before
    for number, reached in enumerate(reaches(by_items)):
        assert before[number] <= reached
        assert all(sets[each] < sets[number] for each in reached)


def reaches(dependencies: Dependencies) -> list[set[int]]:
    """All that each one follows, through others too."""
    found: list[set[int]] = []
    for _, edges in dependencies.edges():
        direct = {dependencies.followed[edge] for edge in edges}
        found.append(direct.union(*(found[each] for each in direct)))
    return found


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three windows of 60 entries, with leads of 40; each log is long."""
    monkeypatch.setattr(binary_log_work, "LONG_BYTES", 1)
    for module in (binary_log_work, scheme_comparison):
        monkeypatch.setattr(module, "WINDOWS", 3)
        monkeypatch.setattr(module, "WINDOW_ENTRIES", 60)
        monkeypatch.setattr(module, "LEAD_ENTRIES", 40)


def logs_of(name: str, folder: Path, count: int) -> list[BinaryLogReader]:
    """The log of a real server, as often as that one after the other."""
    path = folder / "binlog.000001"
    path.write_bytes(gzip.decompress((SERVER_LOGS / f"{name}.binlog.gz").read_bytes()))
    return [read_binary_log(path) for _ in range(count)]


def loaded(logs: list[BinaryLogReader], *, whole: bool) -> Workload:
    """What is read of the files of a log."""
    reader = BinaryLogWork()
    workload = load(reader.read_files(logs, whole=whole), Costs())
    workload.passed = reader.passed
    return workload


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("name, files", [(MARIADB, 1), (MARIADB, 5), (MYSQL, 1)])
def test_windows_that_are_read_alone_run_as_those_of_the_log_that_is_read_whole(
    name: str, files: int, tmp_path: Path
) -> None:
    whole = loaded(logs_of(name, tmp_path, files), whole=True)
    part = loaded(logs_of(name, tmp_path, files), whole=False)
    assert whole.passed == 0 and part.passed > len(whole) // 2
    assert len(part) + part.passed == len(whole)
    assert part.transactions + part.passed == whole.transactions
    windows = sample_of(part).windows
    firsts = [window.positions[0] for window in windows]
    assert len(windows) == 3 and firsts[0] == 40 and firsts[2] > len(whole) // 2
    cut = [whole.window(start, start + 60) for start in firsts]
    for window, same in zip(windows, cut, strict=True):
        numbers = range(len(same))
        assert [*map(window.name, numbers)] == [*map(same.name, numbers)]
        assert window.all_items == same.all_items and window.durations_us == same.durations_us
    for line in LINES:
        assert run_line(windows, line, 8) == run_line(cut, line, 8), line.label


def test_all_of_a_log_that_is_not_long_is_read(tmp_path: Path) -> None:
    logs = logs_of(MARIADB, tmp_path, 2)
    workload = loaded(logs, whole=False)
    assert (workload.transactions, workload.passed) == (2 * 1_206, 0)
    assert [window.transactions for window in sample_of(workload).windows] == [2 * 1_206]


@pytest.mark.usefixtures("small_windows")
def test_windows_that_leave_nothing_out_are_no_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary_log_work, "WINDOW_ENTRIES", 1_000)
    workload = loaded(logs_of(MARIADB, tmp_path, 1), whole=False)
    assert (workload.transactions, workload.passed, workload.starts) == (1_206, 0, [0])
