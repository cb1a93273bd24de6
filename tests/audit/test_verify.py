"""Verify on histories that are odd and right, and on some that are wrong: each is an observer of
its own, and all are audited at once.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.apply import apply
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.verify import verify
from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.history.recorder import HistoryRecorder
from groupcert.certifier.history.schema import STEP_BITS, RecordKind, Row, Source
from groupcert.certifier.position import position_of
from groupcert.certifier.records import GarbageCollection, Record, Transaction
from tests.applier.mysql_logs import test_certification_rows as binary_logs
from tests.audit import lost_numbers
from tests.audit.faults import integer, numbered
from tests.audit.histories import GROUP, OTHER, Workload, random_order, rows_of, write_as_is

pytestmark = pytest.mark.slow
WORKLOAD = Workload(transactions=300, stable_every=30, view_every=70)
TAGGED = f"{GROUP}:backup"
AT_ONCE = CertifierOptions(group_source=GROUP, collection_period_transactions=0)


def begin_late(observer: str, workload: Workload) -> list[Row]:
    """A history whose first files were removed."""
    return numbered(rows_of(random_order(7, workload), observer, workload))[100:]


def joining(observer: str, workload: Workload) -> list[Row]:
    """A member that joins again at each view."""
    records = random_order(8, replace(workload, joins=True))
    return numbered(rows_of(records, observer, workload))


def rejoining(observer: str) -> list[Row]:
    """A member that joins again once, in its middle."""
    return joining(observer, replace(WORKLOAD, view_every=200))


def told(
    observer: str,
    *records: Record | CertifierOptions,
    first: int = 0,
    source: Source = Source.MEMBER,
    begins: CertifierOptions = AT_ONCE,
) -> list[Row]:
    """What a certifier makes of the records, from the row `first` on; options count from where they
    stand.
    """
    certifier = Certifier(begins)
    recorder = HistoryRecorder(certifier, observer, source)
    rows = [recorder.start(0)]
    for record in records:
        if isinstance(record, CertifierOptions):
            certifier.change_options(record)
            rows.append(recorder.settings((integer(rows[-1], "place") >> STEP_BITS) + 1))
        elif isinstance(record, Transaction):
            rows += recorder.transaction(record, certifier.certify(record))
        else:
            assert isinstance(record, GarbageCollection)
            certifier.deliver(record)
            rows += recorder.garbage_collection(record)
    return numbered(rows)[first:]


def wrote(message: int, snapshot: int | str, *items: int, gtid: Gtid | None = None) -> Transaction:
    """A transaction that wrote the items."""
    return Transaction(
        position=position_of(message, 0),
        origin="m1",
        snapshot=GtidSet.parse(snapshot) if isinstance(snapshot, str) else snapshot,
        write_set=items,
        read_set=[],
        gtid=gtid,
    )


def stable(message: int, version: int | str) -> GarbageCollection:
    """A stable set."""
    known = GtidSet.parse(version) if isinstance(version, str) else version
    return GarbageCollection(position_of(message, 0), known)


def too_old_set(observer: str) -> list[Row]:
    """A set that lacks what is stable; its item was written since."""
    older = (wrote(1, 0, 1), wrote(2, 1, 2), stable(3, 2), wrote(4, 2, 3))
    return told(observer, *older, wrote(5, f"{GROUP}:1", 3))


def set_without_what_a_writer_had_read(observer: str) -> list[Row]:
    """A set with version 5, which had read version 4, but not with that."""
    older = [wrote(message, message - 1, message) for message in range(1, 6)]
    return told(observer, *older, wrote(6, f"{GROUP}:1-3:5", 5))


def set_with_tags(observer: str) -> list[Row]:
    """Sets that name tagged GTIDs."""
    return told(
        observer,
        wrote(1, 0, 1),
        wrote(2, 1, 2, gtid=Gtid(TAGGED, 1)),
        wrote(3, f"{GROUP}:1:backup:1", 2),
        wrote(4, f"{GROUP}:1-2", 2),
    )


def errant(observer: str) -> list[Row]:
    """A trace with a GTID that one member alone has: who had read it wrote an item, which a stable
    set has purged before the next one, without that GTID, writes it.
    """
    return told(
        observer,
        wrote(1, f"{OTHER}:1", 1),
        stable(2, f"{GROUP}:1"),
        wrote(3, f"{GROUP}:1", 1),
        source=Source.TRACE,
        begins=replace(AT_ONCE, learn_snapshots=True),
    )


def closed_after_it_was_left_open(observer: str) -> list[Row]:
    """Settings change while a collection goes on, which has left the window open so far."""
    steps = replace(AT_ONCE, collection_period_transactions=4, collection_step_transactions=2)
    records = [wrote(number, number - 1, number) for number in range(1, 11)]
    later = [wrote(number, number - 2, number) for number in range(12, 40)]
    return told(
        observer,
        *records,
        stable(11, 10),
        *later[:3],
        steps,
        *later[3:],
        begins=replace(steps, gc_window="tight"),
    )


def binary_log(observer: str) -> list[Row]:
    """A binary log of three files, each of which begins with 1."""
    stamped = binary_logs.stamped
    files = [[stamped(0, 1), stamped(1, 2), stamped(2, 3)] for _ in range(3)]
    return numbered([row | {"observer": observer} for row in binary_logs.rows(*files)])


def without_rows(observer: str, workload: Workload, first: int) -> list[Row]:
    """A history that lacks a file in its middle, with stable sets and collections."""
    rows = numbered(rows_of(random_order(9, workload), observer, workload))
    gone = rows[first : first + 80]
    assert {RecordKind.STABLE_SET, RecordKind.COLLECTION} <= {row["kind"] for row in gone}
    del rows[first : first + 80]
    return rows


def without_its_join(observer: str) -> tuple[list[Row], list[Row]]:
    """The files before and behind a missing one in which a member joined again."""
    rows = rejoining(observer)
    at = next(n for n, row in enumerate(rows) if row["kind"] == RecordKind.VIEW_CHANGE)
    return rows[: at - 20], rows[at + 20 :]


def skipped_numbers(observer: str) -> tuple[list[Row], list[Row]]:
    """A history without its conflict, in which the clock jumps later; and where it does."""
    records = [wrote(number, number, number + 1) for number in range(6)]
    rows = told(
        observer,
        *records[:2],
        wrote(10, 0, 2),
        *[each._replace(position=each.position + position_of(10, 0)) for each in records[2:]],
    )
    del rows[3]
    rows[5]["sequence_number"] = integer(rows[5], "sequence_number") + 2
    return rows, rows[5:7]


@pytest.mark.in_turns
@pytest.mark.timeout(900)
def test_odd_histories_have_the_findings_of_the_wrong_ones_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    tight, at_once = replace(WORKLOAD, gc_window="tight"), replace(WORKLOAD, period=0)
    # A group of its own: what a late history lacks of its settings, others of its group tell.
    in_blocks = replace(WORKLOAD, block_size=10, group=f"{GROUP[:-1]}f")
    histories = [
        begin_late("late", WORKLOAD),
        begin_late("late-tight", tight),
        begin_late("late-blocks", in_blocks),
        rejoining("late-joins")[100:],
        told(
            "late-old",
            wrote(1, 0, 1),
            wrote(2, 1, 2),
            stable(3, 2),
            wrote(4, 2, 3),
            wrote(5, 1, 3),
            first=4,
        ),
        joining("joins", WORKLOAD),
        joining("joins-tight", tight),
        too_old_set("too-old-set"),
        set_without_what_a_writer_had_read("incomplete-set"),
        set_with_tags("tags"),
        errant("errant"),
        closed_after_it_was_left_open("closed-later"),
        binary_log("files"),
        binary_log("late-files")[6:],
    ]
    decided = too_old_set("too-old-missed")
    decided[-1] |= {"verdict": "conflict", "winner_item": 3, "winner_version": 3}
    expected = {(Code.CONFLICT_FALSE, "too-old-missed", integer(decided[-1], "place"))}
    skipping, jumps = skipped_numbers("skipped")
    expected |= {(Code.SEQUENCE_WRONG, "skipped", integer(row, "place")) for row in jumps}
    lacking = [skipping]
    for name, workload in (("close", WORKLOAD), ("tight", tight), ("at-once", at_once)):
        lacking += [without_rows(f"lacks-{name}-{at}", workload, at) for at in (90, 150)]
    for rows in lacking:
        behind = next(row for n, row in enumerate(rows, 1) if row["number"] != n)
        expected.add((Code.RECORD_MISSING, str(behind["observer"]), integer(behind, "place")))
    before, behind_join = without_its_join("lacks-join")
    expected.add((Code.RECORD_MISSING, "lacks-join", integer(behind_join[0], "place")))
    for rows, wrong in lost_numbers.histories():
        lacking.append(rows)
        expected |= wrong
    write_as_is(tmp_path, *histories)
    for rows in (*lacking, decided, before, behind_join):
        write_as_is(tmp_path, rows)
    log = Log(spark, [str(tmp_path)])
    result = verify.run(log)
    assert {(each.code, each.observer, each.place) for each in result.findings} == expected
    assert result.counts.total() == len(expected)
    assert not apply.run(log).findings
