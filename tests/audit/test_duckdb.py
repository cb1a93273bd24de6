"""The benchmark's queries of DuckDB beside the job that they are compared with.

Aim: the full query asks what `verify` asks. Method: right histories, each made wrong in one way;
both find the code that was planted. DuckDB does not tell what follows from what, so that it may
count more of those that a gap or a duplicate brings along.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.verify import verify
from groupcert.certifier.history.schema import Cursor, Row
from groupcert.members.certification_log.files import write_file
from tests.audit.duckdb_checks import ALL, wrong_by
from tests.audit.long_history import Workload, rows

Change = Callable[[list[Row]], None]
WORKLOAD = Workload(
    transactions=2_000,
    items_total=2_000,
    alone_share=0.03,
    stable_period=200,
    stable_lag=60,
    view_period=300,
)
FOLLOWING = {Code.RECORD_MISSING, Code.RECORD_REORDERED, Code.GTID_DUPLICATE, Code.GTID_ORDER}
"""What `verify` finds, and tells what follows from it."""


def number(row: Row, name: str) -> int:
    value = row[name]
    assert isinstance(value, int)
    return value


def middle(history: list[Row], **wanted: object) -> Row:
    """Returns a row in the middle of those that have certain values."""
    found = [row for row in history if all(row.get(name) == each for name, each in wanted.items())]
    return found[len(found) // 2]


def plus(name: str, change: int, **wanted: object) -> Change:
    """Returns a change of a number in a row of the middle."""

    def changed(history: list[Row]) -> None:
        row = middle(history, **wanted)
        row[name] = number(row, name) + change

    return changed


def becomes(name: str, value: int | str, **wanted: object) -> Change:
    def changed(history: list[Row]) -> None:
        middle(history, **wanted)[name] = value

    return changed


def lowered_snapshot(history: list[Row]) -> None:
    """The snapshot of a certified transaction lacks a writer of one of its items."""
    writers: dict[int, int] = {}
    for row in history:
        if row.get("verdict") != "certified":
            continue
        version = number(row, "version")
        last = max((writers.get(item, 0) for item in _items(row)), default=0)
        if version > 500 and last > version - 40:
            row["snapshot_version"] = last - 1
            return
        writers |= dict.fromkeys(_items(row), version)
    raise AssertionError("no transaction depends on one shortly before it")


def _items(row: Row) -> list[int]:
    items = row["write_set"]
    assert isinstance(items, list)
    return [item for item in items if isinstance(item, int)]


def raised_snapshot(history: list[Row]) -> None:
    row = middle(history, verdict="conflict")
    row["snapshot_version"] = row["version"]


def same_gtid(history: list[Row]) -> None:
    given = [row for row in history if row.get("verdict") == "certified"]
    given[500]["gtid_number"] = given[499]["gtid_number"]


def skipped_gtid(history: list[Row]) -> None:
    for row in history[1_000:]:
        if row.get("gtid_number") is not None:
            row["gtid_number"] = number(row, "gtid_number") + 1


def exchanged_gtids(history: list[Row]) -> None:
    given = [row for row in history if row.get("verdict") == "certified"]
    one, other = given[500], given[501]
    one["gtid_number"], other["gtid_number"] = other["gtid_number"], one["gtid_number"]


def exchanged_rows(history: list[Row]) -> None:
    at = next(
        at
        for at in range(1_000, len(history))
        if {history[at].get("verdict"), history[at + 1].get("verdict")} == {"conflict"}
    )
    history[at], history[at + 1] = history[at + 1], history[at]


def lost_row(history: list[Row]) -> None:
    """The writer leaves the number of this row out."""
    history.remove(middle(history, verdict="conflict"))


CHANGES: dict[Code, Change] = {
    Code.CONFLICT_MISSED: lowered_snapshot,
    Code.CONFLICT_FALSE: raised_snapshot,
    Code.WINNER_WRONG: plus("winner_version", -1, verdict="conflict"),
    Code.TOO_OLD_MISSED: becomes("snapshot_version", 0, verdict="certified"),
    Code.TOO_OLD_FALSE: becomes("verdict", "too_old", verdict="conflict"),
    Code.REFUSAL_MISSED: plus("snapshot_version", 100, verdict="certified"),
    Code.REFUSAL_FALSE: becomes("verdict", "refused", verdict="conflict"),
    Code.STAMP_TOO_LOW: plus("last_committed", -1, verdict="certified"),
    Code.STAMP_TOO_HIGH: plus("last_committed", 1, verdict="certified"),
    Code.SEQUENCE_WRONG: plus("sequence_number", 1, verdict="certified"),
    Code.VERSION_WRONG: plus("version", 1, kind="view_change"),
    Code.GTID_DUPLICATE: same_gtid,
    Code.GTID_GAP: skipped_gtid,
    Code.GTID_ORDER: exchanged_gtids,
    Code.VIEW_CHANGE_WRONG: plus("last_committed_global", 1, kind="view_change"),
    Code.STABLE_SET_WRONG: plus("stable_version", 100, kind="stable_set"),
    Code.PURGED_TOO_EARLY: plus("collected_version", 5, kind="collection"),
    Code.COLLECTION_WRONG: plus("purged_items", 1, kind="collection"),
    Code.WINDOW_WRONG: plus("last_committed_global", 1, kind="collection"),
    Code.RECORD_REORDERED: exchanged_rows,
    Code.RECORD_MISSING: lost_row,
}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder of each change, with one history; and one that was not changed."""
    right = list(rows(WORKLOAD))
    for name, change in (("right", None), *CHANGES.items()):
        history = [{**row, "history": str(name)} for row in right]
        if change is not None:
            change(history)
        places = [row["place"] for row in history]
        kept = next((at for at, row in enumerate(right) if row["place"] not in places), len(right))
        first = write_file(tmp_path / name, history[:kept], Cursor())
        assert first
        write_file(tmp_path / name, history[kept:], first.cursor._replace(number=kept + 1))
    return tmp_path


def test_the_query_asks_for_each_code_of_the_job(logs: Path) -> None:
    assert wrong_by(ALL, logs / "right", "1GB", str(logs))[0] == {}
    for code in CHANGES:
        assert wrong_by(ALL, logs / code, "1GB", str(logs))[0][code] > 0


@pytest.mark.in_turns
@pytest.mark.spark
def test_the_job_finds_what_the_query_finds(logs: Path, spark: SparkSession) -> None:
    found: dict[str, Counter[str]] = {}
    for finding in verify.run(Log(spark, [str(logs)])).findings:
        found.setdefault(finding.history, Counter())[finding.code.value] += 1
    assert found.keys() == set(CHANGES)
    for code, counts in found.items():
        asked = wrong_by(ALL, logs / code, "1GB", str(logs))[0]
        if code in FOLLOWING:
            assert counts[code] and not counts - Counter(asked), code
        else:
            assert counts == asked, code
