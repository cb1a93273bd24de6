"""Which numbers a GTID may have: histories that are right, and some with one number that is not.

Each is one member's history of a group of its own; all are audited at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.rows import checks
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.verify import verify
from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.history.recorder import HistoryRecorder
from groupcert.certifier.history.schema import Row, Source
from groupcert.certifier.position import position_of
from groupcert.certifier.records import ExecutedElsewhere, Transaction
from tests.audit.faults import integer, is_decided
from tests.audit.histories import OTHER, Workload, random_order, rows_of, write

pytestmark = pytest.mark.slow
BUSY = Workload(transactions=500, block_size=100, load=(8, 1, 1), view_every=97)
OWN = Workload(transactions=300, brought_share=0.5, brought_own=True)
Edit = Callable[[list[Row]], Row]
"""Makes a number wrong, and gives the row that is found."""


def told(
    workload: Workload, *, sizes: Mapping[int, int] | None = None, begins: int = 0
) -> list[Row]:
    """A member's rows: before the records of `sizes` its group changes the size of blocks; its
    history begins with the record `begins`, and its group with numbers 1 to 9 of two sources, and
    a tagged one.
    """
    plain = replace(workload, view_every=1_000_000, stable_every=1_000_000)
    options = CertifierOptions(
        group_source=workload.group, gtid_assignment_block_size=workload.block_size
    )
    certifier = Certifier(options)
    recorder = HistoryRecorder(certifier, "m1", Source.MEMBER)
    rows = [recorder.start(position_of(1, 0))]
    before = ExecutedElsewhere(
        position_of(1, 0), GtidSet.parse(f"{workload.group}:1-9,{OTHER}:1-9:backup:3")
    )
    certifier.deliver(before)
    rows += recorder.executed_elsewhere(before)
    for number, record in enumerate(random_order(1, plain)):
        assert isinstance(record, Transaction) and isinstance(record.snapshot, int)
        if number == begins and begins:
            recorder = HistoryRecorder(certifier, "m1", Source.MEMBER)
            rows = [recorder.start(record.position)]
        # The group knows fewer versions than the records' own, where more GTIDs were used before.
        snapshot = min(record.snapshot, certifier.window.newest_version)
        record = record._replace(snapshot=snapshot)
        if sizes and number in sizes:
            options = replace(options, gtid_assignment_block_size=sizes[number])
            certifier.change_options(options)
            rows.append(recorder.settings(record.position))
        rows += recorder.transaction(record, certifier.certify(record))
    return rows


def _given(rows: list[Row]) -> list[Row]:
    return [row for row in rows if is_decided(row, "certified") and not row["gtid_brought"]]


def skip(count: int) -> Edit:
    """The last number is larger, behind one more of the same member."""

    def edit(rows: list[Row]) -> Row:
        last, *earlier = reversed(_given(rows))
        before = next(row for row in earlier if row["origin"] == last["origin"])
        assert integer(before, "gtid_number") < integer(last, "gtid_number")
        last["gtid_number"] = integer(last, "gtid_number") + count
        return last

    return edit


def first_too_high(rows: list[Row]) -> Row:
    """All numbers are one more than they should be."""
    for row in _given(rows):
        row["gtid_number"] = integer(row, "gtid_number") + 1
    return _given(rows)[0]


def used_elsewhere(rows: list[Row]) -> Row:
    """A GTID that was brought along was executed elsewhere before the history."""
    brought = [row for row in rows if is_decided(row, "certified") and row["gtid_brought"]]
    brought[-1]["gtid_number"] = 5
    return brought[-1]


def refused_for_what_was_before(rows: list[Row]) -> bool:
    """Whether a GTID was refused that the rows do not show as used."""
    shown = {
        (row["gtid_source"], row["gtid_number"]) for row in rows if is_decided(row, "certified")
    }
    refused = [row for row in rows if is_decided(row, "refused") and row["gtid_brought"]]
    return any((row["gtid_source"], row["gtid_number"]) not in shown for row in refused)


RIGHT = {
    **{f"busy {seed}": (replace(BUSY, transactions=400 + 50 * seed), None, 0) for seed in range(3)},
    "one by one, then blocks": (BUSY, {100: 1_000_000, 300: 1}, 0),
    "blocks, then one by one": (replace(BUSY, block_size=10), {33: 1, 44: 7, 100: 100}, 0),
    "a joiner": (OWN, None, 150),
    "a joiner, with blocks": (replace(OWN, block_size=7, load=(8, 1, 1)), {250: 8}, 150),
}
WRONG: dict[str, tuple[Workload, Edit, Code]] = {
    "one by one": (Workload(transactions=90), skip(1), Code.GTID_GAP),
    "first": (Workload(transactions=90, brought_share=0), first_too_high, Code.GTID_GAP),
    "in a block": (replace(BUSY, block_size=1_000, load=(1, 0, 0)), skip(1), Code.GTID_GAP),
    "in a late round": (replace(BUSY, block_size=20), skip(1), Code.GTID_GAP),
    "no block's": (BUSY, skip(5_000), Code.GTID_GAP),
    "elsewhere": (
        Workload(transactions=90, brought_share=0.2),
        used_elsewhere,
        Code.GTID_DUPLICATE,
    ),
}


JOINERS = [name for name, (*_, begins) in RIGHT.items() if begins]


@pytest.mark.timeout(900)
def test_numbers_that_the_rule_gives_are_no_finding_and_others_are(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = set()
    group = iter(f"00000000-0000-0000-0003-{number:012x}" for number in range(99))
    histories: list[tuple[str, list[Row]]] = []
    for name, (workload, sizes, begins) in RIGHT.items():
        workload = replace(workload, group=next(group))
        histories.append((name, told(workload, sizes=sizes, begins=begins)))
        if not sizes and not begins:
            rows = rows_of(random_order(1, workload), "m1", workload)
            histories.append((f"{name}, with views", rows))
    for name, (workload, edit, code) in WRONG.items():
        rows = told(replace(workload, group=next(group)))
        expected.add((code, name, edit(rows)["place"]))
        histories.append((name, rows))
    assert all(map(refused_for_what_was_before, (dict(histories)[name] for name in JOINERS)))
    for name, rows in histories:
        for row in rows:
            row["observer"] = name
        write(tmp_path, rows)
    monkeypatch.setattr(checks, "ROWS_MAX", 5)
    result = verify.run(Log(spark, [str(tmp_path)]))
    found = {(each.code, each.observer, each.place) for each in result.findings}
    assert found == expected
    assert result.counts.total() == len(expected)
