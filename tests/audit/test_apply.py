"""The apply job finds what an applier did wrong, at its place and by its code, and nothing else.

Method: each history below is an observer of one log, right or wrong in one way; the job runs once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.answers.result import Result
from groupcert.certifier.audit.apply import apply, times
from groupcert.certifier.audit.rows import states
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.history.schema import RecordKind, Row
from tests.audit.histories import Workload, random_order, rows_of, tight, write

WORKLOAD = Workload(transactions=300, members=3, items=40)
Fault = Callable[[list[Row]], int]
"""Makes rows wrong and returns the place of the row that has to be found."""


def _ran(rows: Sequence[Row]) -> list[Row]:
    """The rows of those that an applier executed."""
    return [row for row in rows if row.get("started_tick")]


def _number(row: Row, name: str) -> int:
    value = row[name]
    assert isinstance(value, int)
    return value


def _items(row: Row) -> set[int]:
    items = row["write_set"]
    assert isinstance(items, list)
    return {int(item) for item in items}


def _together(rows: list[Row]) -> int:
    """A transaction starts one tick before the last writer of one of its items is visible."""
    ran = _ran(rows)
    writers: dict[int, Row] = {}
    for row in ran[: len(ran) // 2]:
        writers.update(dict.fromkeys(_items(row), row))
    later = next(row for row in ran[len(ran) // 2 :] if writers.keys() & _items(row))
    ticks = [_number(writers[item], "committed_tick") for item in writers.keys() & _items(later)]
    later["started_tick"] = max(ticks) - 1
    return _number(later, "place")


def _not_alone(rows: list[Row]) -> int:
    """A transaction without write set starts before the one before it is visible."""
    ran = _ran(rows)
    place = next(place for place in range(9, len(ran)) if not ran[place]["write_set"])
    ran[place]["started_tick"] = _number(ran[place - 1], "committed_tick") - 1
    return _number(ran[place], "place")


def _beside_one_alone(rows: list[Row]) -> int:
    """A transaction starts before the one without write set before it is visible."""
    ran = _ran(rows)
    place = next(place for place in range(9, len(ran)) if not ran[place - 1]["write_set"])
    ran[place]["started_tick"] = _number(ran[place - 1], "committed_tick") - 1
    return _number(ran[place], "place")


def _out_of_order(rows: list[Row]) -> int:
    """Two neighbours change their ticks; the first of them is nobody's dependency."""
    ran = [row for row in rows if row.get("committed_tick")]
    for one, other in pairwise(ran[20:]):
        if one["is_local"] and other["is_local"]:
            one["committed_tick"], other["committed_tick"] = (
                other["committed_tick"],
                one["committed_tick"],
            )
            return _number(other, "place")
    raise AssertionError("no two local neighbours")


def _too_soon(rows: list[Row]) -> int:
    """A stamp is raised to a transaction that it shares nothing with, and was not visible yet."""
    ran = _ran(rows)
    for one, other in pairwise(ran[20:]):
        apart = one["write_set"] and other["write_set"] and not _items(one) & _items(other)
        if apart and _number(other, "started_tick") < _number(one, "committed_tick"):
            other["last_committed"] = one["sequence_number"]
            return _number(other, "place")
    raise AssertionError("no two neighbours ran at once")


def _group_commit(rows: list[Row]) -> int:
    """Neighbours that ran at once are visible with the same tick: nothing is wrong with that."""
    for row in rows:
        for name in ("started_tick", "committed_tick"):
            if row.get(name):
                row[name] = (_number(row, name) + 1) // 2
    return 0


FAULTS: Mapping[str, tuple[Code | None, Fault]] = {
    "together": (Code.APPLIED_TOGETHER, _together),
    "not-alone": (Code.APPLIED_TOGETHER, _not_alone),
    "beside-one-alone": (Code.APPLIED_TOGETHER, _beside_one_alone),
    "out-of-order": (Code.APPLIED_OUT_OF_ORDER, _out_of_order),
    "too-soon": (Code.APPLIED_TOO_SOON, _too_soon),
    "group-commit": (None, _group_commit),
}


def _renamed(rows: list[Row], observer: str) -> list[Row]:
    return [{**row, "observer": observer} for row in rows]


@pytest.fixture(scope="module")
def audited(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, dict[str, int], list[Row]]:
    """The job's result over all histories, the places of the faults, and the rows of one member."""
    histories, places = [], {}
    for seed, workload in enumerate((WORKLOAD, tight(WORKLOAD), replace(WORKLOAD, items=4)), 1):
        records = random_order(seed, workload)
        histories.append(_renamed(rows_of(records, "m1", workload), f"clean-{seed}"))
    for name, (_, fault) in FAULTS.items():
        rows = rows_of(random_order(7, WORKLOAD), "m1", WORKLOAD)
        places[name] = fault(rows)
        histories.append(_renamed(rows, name))
    untold = rows_of(random_order(8, WORKLOAD), "m1", WORKLOAD)
    for row in untold:
        for name in ("started_tick", "committed_tick", "started_us", "executed_us", "worker"):
            row.pop(name, None)
        row.pop("committed_us", None)
    histories.append(_renamed(untold, "untold"))
    histories.append([{**row, "history": "2"} for row in _renamed(untold, "clean-1")])
    folder = tmp_path_factory.mktemp("apply")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "SEGMENT_ROWS", 30)
        patch.setattr(times, "PART_TICKS", 16)
        result = apply.run(Log(spark, write(folder, *histories)))
    return result, places, histories[0]


def test_each_fault_is_found_at_its_place_and_nothing_else(
    audited: tuple[Result, dict[str, int], list[Row]],
) -> None:
    result, places, _ = audited
    expected = {(code, name, places[name]) for name, (code, _) in FAULTS.items() if code}
    assert {(each.code, each.observer, each.place) for each in result.findings} == expected
    assert len(result.findings) == sum(result.counts.values()) == len(expected)


def test_witnesses_name_both_transactions_their_ticks_and_what_they_share(
    audited: tuple[Result, dict[str, int], list[Row]],
) -> None:
    result, _, _ = audited
    words = {
        each.observer: f"{each.expected} {each.found} {each.witness}" for each in result.findings
    }
    for text in words.values():
        assert text.count("3e11fa47") + text.count("11111111-1111") >= 2 and "tick" in text
    assert "both wrote item" in words["together"] and "worker" in words["together"]
    assert "no write set and has to run alone" in words["not-alone"]
    assert "no write set and has to run alone" in words["beside-one-alone"]
    assert "waits for last_committed" in words["too-soon"]


def test_the_summary_tells_what_a_plain_count_tells(
    audited: tuple[Result, dict[str, int], list[Row]],
) -> None:
    result, _, rows = audited
    assert result.summary["skipped"] == ["clean-1, history 2", "untold"]
    observers = result.summary["observers"]
    assert isinstance(observers, list) and len(observers) == 3 + len(FAULTS)
    assert {each["forced_cuts"] for each in observers} == {0}
    told = next(each for each in observers if each["observer"] == "clean-1")
    ran = _ran(rows)
    spans = [(_number(row, "started_us"), _number(row, "executed_us")) for row in ran]
    ticks = [(_number(row, "started_tick"), _number(row, "committed_tick")) for row in ran]
    beside = sum(
        any(other is not one and other[0] < one[1] and one[0] < other[1] for other in ticks)
        for one in ticks
    )
    assert told["transactions"] == len(ran) == sum(told["lag"]["count"])
    assert told["overlapping"] == pytest.approx(beside / len(ran), abs=1e-3)
    assert told["workers"] == 4 == len(told["worker_busy"])
    assert sum(each["busy_us"] for each in told["worker_busy"]) == sum(b - a for a, b in spans)
    most = max(sum(a <= start < b for a, b in spans) for start, _ in spans)
    assert max(told["running"]["max"]) == most
    busy_us = sum(told["running"]["mean"]) * told["running"]["bucket_us"]
    assert busy_us == pytest.approx(sum(b - a for a, b in spans), rel=0.01)
    lags = [_number(row, "committed_us") - _number(row, "decided_us") for row in ran]
    assert max(each for each in told["lag"]["max_us"] if each is not None) == max(lags)
    assert 1 <= told["running_mean"] <= 4 and 0 < told["used_share"] <= 1
    assert any(row["kind"] == RecordKind.VIEW_CHANGE for row in rows)
