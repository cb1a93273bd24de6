"""Rows of certification logs as work: stamps, lock intervals and names, if a log has them."""

from typing import Any

from groupcert.applier.whatif.history_work import COLUMNS, HistoryWork
from groupcert.applier.whatif.workload import Work
from groupcert.certifier.history.schema import RecordKind, Verdict

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def row(version: int, *items: int, **fields: Any) -> dict[str, Any]:
    """A certified transaction as its log has it; columns that are not given are null."""
    known: dict[str, Any] = {
        "kind": RecordKind.TRANSACTION.value,
        "verdict": Verdict.CERTIFIED.value,
        "version": version,
        "gtid_source": GROUP,
        "gtid_number": version,
        "write_set": list(items),
    }
    return {**dict.fromkeys(COLUMNS), **known, **fields}


def work_of(*rows: dict[str, Any]) -> list[Work]:
    return list(HistoryWork().read(rows))


def test_stamps_are_those_of_complete_snapshots() -> None:
    found = work_of(row(1, 7), row(2, 8), row(3, 7, -1), row(4), row(5, 8))
    stamps = [(each.last_committed, each.sequence_number) for each in found]
    assert stamps == [(1, 2), (1, 3), (2, 4), (4, 5), (5, 6)]
    assert found[2].header.items == [7, (1 << 64) - 1]


def test_lock_intervals_begin_at_the_snapshot_as_far_as_it_is_known() -> None:
    found = work_of(
        row(1, 1),
        row(2, 2, snapshot_version=0),
        row(3, 3, snapshot_set=f"{GROUP}:1"),
        row(4, 4, last_committed=1, sequence_number=4),
        row(5),
        row(6, 5, snapshot_version=2),
    )
    assert [each.lock_interval for each in found] == [1, 2, 2, 3, 1, 1]
    assert [each.header.commit_parent for each in found] == [1, 1, 2, 2, 5, 3]


def test_what_was_not_certified_is_counted_and_left_out() -> None:
    history = HistoryWork()
    view = {**row(1), "kind": RecordKind.VIEW_CHANGE.value}
    start = {**row(0), "kind": RecordKind.START.value}
    rows = [start, row(1, 1), row(1, 1, verdict=Verdict.CONFLICT.value), view]
    assert [each.gtid is None for each in history.read(rows)] == [False, True]
    assert history.verdicts[Verdict.CONFLICT] == history.verdicts[Verdict.CERTIFIED] == 1


def test_keys_are_the_logs_or_else_named_by_the_one_table() -> None:
    history = HistoryWork()
    (named,) = history.read([row(1, 1, write_keys=["shop.t/1"])])
    assert (named.keys, history.has_keys) == (["shop.t/1"], True)
    one, several = history.read([row(2, 1, tables=["shop.t"]), row(3, 1, tables=["a.t", "b.t"])])
    assert one.keys == ["shop.t/0000000000000001"]
    assert several.keys == ["/0000000000000001"]
    assert not history.has_keys
