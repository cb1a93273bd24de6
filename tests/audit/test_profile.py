"""The profile job against plain sequential computations over the same rows.

Method: a member's history of a random order, with keys and with what the seeds' schemes ask for,
in one log with another member's and with a binary log's; the job runs once. The schedules are also
tried on streams whose time is known.
"""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from certifier.audit import profile, schemes, stretches
from certifier.audit.critical_path import chain, epochs, filled, waits
from certifier.audit.log import Log
from certifier.audit.result import Result
from certifier.audit.schedules import (
    Partitions,
    at_the_head,
    group_begins,
    in_lanes,
    newest_writers,
    until_conflict,
    whoever_may,
    with_owners,
)
from certifier.audit.schemes import sample_of, simulation
from certifier.history import RecordKind, Row
from tests.audit.histories import BEGIN_US, Workload, random_order, rows_of, write, write_as_is

WORKLOAD = Workload(transactions=700, items=50, alone_share=0.03, view_every=90)
TABLES = ("shop.orders", "shop.lines", "bank.account")
Graph = list[tuple[int, set[int], bool]]
"""Of each transaction its length, its items, and whether it runs alone."""


def _key(item: int) -> str:
    return f"{TABLES[item % 3]}/{item % 1_000_000}"


def _told(seed: int, observer: str) -> list[Row]:
    """A member's rows with keys, commit parents and groups of three."""
    rows = rows_of(random_order(seed, WORKLOAD), observer, WORKLOAD)
    for number, row in enumerate(rows):
        for items, keys in (("write_set", "write_keys"), ("read_set", "read_keys")):
            found = row.get(items)
            if isinstance(found, list):
                row[keys] = [_key(int(item)) for item in found]
        if row["kind"] == RecordKind.TRANSACTION:
            row["commit_parent"] = row["commit_id"] = number // 3 + 1
            row["domain_id"] = 0
            row["decided_us"] = BEGIN_US + 20_000 * number
    return rows


def _binary_log() -> list[Row]:
    """A binary log of two files, without write sets; each waits for the one four before it."""
    rows: list[Row] = []
    kinds = [RecordKind.START, *[RecordKind.TRANSACTION] * 50, RecordKind.VIEW_CHANGE]
    for number, kind in enumerate([*kinds, *[RecordKind.TRANSACTION] * 30], 1):
        row: Row = {"format_version": 1, "observer": "source", "history": "1", "kind": kind.value}
        row |= {"place": number << 24, "version": 0}
        if kind is RecordKind.TRANSACTION:
            stamp = number - 1 if number < 52 else number - 52
            row |= {"verdict": "certified", "is_local": False, "sequence_number": stamp}
            row["last_committed"] = max(stamp - 5, 0)
        elif kind is RecordKind.VIEW_CHANGE:
            row |= {"last_committed": 0, "sequence_number": 0, "resets_clock": True}
        else:
            row["settings"] = '{"source":"binary_log"}'
        rows.append(row)
    return rows


def _unbroken() -> list[Row]:
    """A member's 210 transactions; each waits for the one four before it, and nothing for all."""
    rows: list[Row] = []
    for number in range(1, 211):
        row: Row = {"format_version": 1, "observer": "unbroken", "history": "1", "number": number}
        row |= {"place": number << 24, "version": number, "kind": RecordKind.TRANSACTION.value}
        row |= {"verdict": "certified", "is_local": False, "write_set": [number % 4]}
        rows.append(row | {"sequence_number": number + 1, "last_committed": max(number - 3, 1)})
    return rows


def test_a_history_that_begins_late_is_sampled_in_its_middle(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the numbers that its rows have."""
    rows = [{**row, "number": _int(row, "number") + 10**6} for row in _unbroken()]
    write_as_is(tmp_path, rows)
    log = Log(spark, [str(tmp_path)])
    told = stretches.paces(log)
    monkeypatch.setattr(schemes, "SAMPLE_ROWS_MAX", 50)
    sample = schemes.take_sample(log, told, 0)
    assert sample.numbers.tolist() == list(range(82, 132))
    buckets = log.certified.select(stretches.bucket_column(log, told).alias("bucket"))
    assert {row["bucket"] for row in buckets.collect()} == set(range(105))


@pytest.fixture(scope="module")
def profiled(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, list[Row]]:
    """The job's result and the rows that its schemes were taken from; stretches are short."""
    rows, other = _told(1, "m1"), _told(1, "m2")[:500]
    folder = tmp_path_factory.mktemp("profile")
    paths = write(folder, rows, other, _binary_log(), _unbroken())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "SEGMENT_ROWS_MIN", 40)
        patch.setattr(stretches, "STRETCH_ROWS_MAX", 105)
        return profile.run(Log(spark, paths)), rows


def _applied(rows: list[Row]) -> list[Row]:
    """What an applier has to do with: its transactions, and view changes."""
    return [
        row
        for row in rows
        if row["kind"] == RecordKind.VIEW_CHANGE
        or (row.get("sequence_number") and row["kind"] == "transaction")
    ]


def _ints(row: Row, name: str) -> set[int]:
    found = row.get(name) or []
    assert isinstance(found, list)
    return {int(each) for each in found}


def _int(row: Row, name: str) -> int:
    found = row.get(name)
    assert isinstance(found, int)
    return found


def _path_by_stamps(rows: list[Row]) -> tuple[int, int]:
    """Work and critical path by a loop over everything before each transaction."""
    done: dict[int, int] = {}
    work = last = floor = 0
    for row in _applied(rows):
        if row["kind"] == RecordKind.VIEW_CHANGE:
            floor = last
            continue
        length = _int(row, "committed_us") - _int(row, "started_us")
        before = [end for sn, end in done.items() if sn <= _int(row, "last_committed")]
        end = max([floor, *before]) + length
        done[_int(row, "sequence_number")] = end
        work, last = work + length, max(last, end)
    return work, last


def _path_by_writers(rows: list[Row]) -> tuple[int, int]:
    """Critical path if each waits for the last writers of its items, and how many wait for more."""
    ends: list[int] = [0]
    writers: dict[int, int] = {}
    numbers = [1]
    floor = waiting = 0
    for row in rows:
        view = row["kind"] == RecordKind.VIEW_CHANGE
        if not view and row.get("verdict") != "certified":
            continue
        items = _ints(row, "write_set")
        if not view and not row.get("sequence_number"):
            writers |= dict.fromkeys(items, 0)
            continue
        before = max([floor, *(writers.get(item, 0) for item in items)])
        alone = view or not items
        length = 0 if view else _int(row, "committed_us") - _int(row, "started_us")
        if alone:
            before = len(ends) - 1
        elif _int(row, "last_committed") > numbers[before]:
            waiting += 1
        ends.append(max(ends[: before + 1]) + length)
        numbers.append(numbers[-1] if view else _int(row, "sequence_number"))
        if alone:
            floor = len(ends) - 1
        writers |= dict.fromkeys(items, len(ends) - 1)
    return max(ends), waiting


@pytest.mark.spark
def test_the_critical_path_is_that_of_one_pass_over_everything(
    profiled: tuple[Result, list[Row]],
) -> None:
    result, rows = profiled
    told: Any = result.summary
    by_name = {each["observer"]: each for each in told["parallelism"]}
    assert told["observer"] == "m1" and told["durations"] == "measured"
    work, path = _path_by_stamps(rows)
    assert (by_name["m1"]["work"], by_name["m1"]["critical_path"]) == (work, path)
    assert by_name["m1"]["transactions"] == len(_applied(rows)) - sum(
        row["kind"] == RecordKind.VIEW_CHANGE for row in rows
    )
    assert by_name["m1"]["epochs"] > 20
    source = by_name["source"]
    assert (source["durations"], source["work"], source["epochs"]) == ("unit", 80, 2)
    assert (source["critical_path"], source["width_max"]) == (10 + 6, 5)
    assert result.tables["epochs"].where("observer = 'm1'").count() > 5
    width = told["width"]
    assert width["unit"] == "time" and 1 <= max(width["max"]) <= by_name["m1"]["width_max"]


@pytest.mark.spark
def test_a_stretch_that_is_too_long_is_cut_and_that_is_told(
    profiled: tuple[Result, list[Row]],
) -> None:
    told: Any = profiled[0].summary
    by_name = {each["observer"]: each for each in told["parallelism"]}
    unbroken = by_name["unbroken"]
    assert unbroken["forced_cuts"] == 1 and unbroken["transactions"] == 210
    assert unbroken["critical_path"] == 27 + 27, "53 without the cut"
    assert [by_name[name]["forced_cuts"] for name in ("m1", "m2", "source")] == [0, 0, 0]
    assert told["windows"]["forced_cuts"] == 0


@pytest.mark.spark
def test_what_windows_and_missing_write_sets_cost(profiled: tuple[Result, list[Row]]) -> None:
    result, rows = profiled
    told: Any = result.summary
    windows, path = told["windows"], _path_by_writers(rows)
    collections = [row for row in rows if row["kind"] == RecordKind.COLLECTION]
    closed = [row["last_committed_global"] == row["sequence_number"] for row in collections]
    assert (windows["collections"], windows["closed"]) == (len(collections), sum(closed))
    assert windows["purged_items"] == sum(_int(row, "purged_items") for row in collections)
    assert (windows["critical_path_without"], windows["waiting_for_window"]) == path
    assert windows["critical_path_without"] < windows["critical_path"]
    certified = [row for row in rows if row.get("verdict") == "certified"]
    without = [row for row in certified if not row["write_set"]]
    missing = told["without_write_set"]
    assert missing["total"] == len(without) == sum(e["transactions"] for e in missing["by_origin"])
    assert missing["share"] == pytest.approx(len(without) / len(certified), abs=1e-6)
    assert 0 < missing["critical_path_share"] < 1


@pytest.mark.spark
def test_conflicts_and_hot_items_are_counted(profiled: tuple[Result, list[Row]]) -> None:
    result, rows = profiled
    told: Any = result.summary
    lost = [row for row in rows if row.get("verdict") == "conflict"]
    assert told["conflicts"]["observer"] == "m1"
    assert told["conflicts"]["total"] == len(lost) == result.tables["conflicts"].count()
    assert sum(each["conflicts"] for each in told["conflicts"]["by_pair"]) == len(lost)
    by_time = told["conflicts"]["by_time"]
    decided = [_int(row, "decided_us") for row in rows if row["kind"] == "transaction"]
    begins = [us // by_time["width_us"] * by_time["width_us"] for us in decided]
    assert [each["begin_us"] for each in by_time["parts"]] == sorted(set(begins))
    assert by_time["width_us"] == 1_000_000 and len(begins) > len(by_time["parts"]) > 9
    assert sum(each["conflict"] for each in by_time["parts"]) == len(lost)
    by_table = {each["table"]: each for each in told["conflicts"]["by_table"]}
    for number, table in enumerate(TABLES):
        mine = sum(_int(row, "winner_item") % 3 == number for row in lost)
        users = [row for row in rows if any(item % 3 == number for item in _ints(row, "write_set"))]
        assert by_table[table]["conflicts"] == mine
        assert by_table[table]["transactions"] == len(users)
    hot = told["hot_items"][0]
    item = int(hot["item"], 16) - (1 << 64) * (int(hot["item"], 16) >> 63)
    certified = [row for row in rows if row.get("verdict") == "certified"]
    assert hot["key"] == _key(item)
    assert hot["conflicts"] == sum(row["winner_item"] == item for row in lost)
    assert hot["writers"] == sum(item in _ints(row, "write_set") for row in certified)
    assert hot["readers"] == sum(item in _ints(row, "read_set") for row in certified)
    assert told["conflicts"]["by_key"][0]["key"] == hot["key"]


@pytest.mark.spark
def test_schemes_are_told_with_their_curves(profiled: tuple[Result, list[Row]]) -> None:
    result, rows = profiled
    told: Any = result.summary
    schemes = {each["scheme"]: each for each in told["schemes"]}
    assert len(schemes) == 8 and all(each["known"] for each in schemes.values())
    for each in schemes.values():
        speedups = [point["speedup"] for point in each["curve"]]
        assert speedups[0] == 1.0 and each["sampled_share"] == 1.0
        assert all(0.9 * one <= other for one, other in pairwise(speedups))
    work, path = _path_by_stamps(rows)
    assert schemes["logical-clock"]["speedup_max"] == round(work / path, 3)
    assert schemes["jobs-graph"]["speedup_max"] >= schemes["logical-clock"]["speedup_max"]
    assert schemes["commit-parent"]["speedup_max"] <= 3.0


@pytest.mark.parametrize("known", [True, False])
def test_a_log_whose_transactions_committed_one_by_one_has_commit_ids(known: bool) -> None:
    numbers = ("number", "length", "sequence_number", "last_committed", "commit_parent")
    columns = {name: pa.array([1, 2, 3]) for name in numbers}
    columns["domain_id"] = pa.array([0, 0, 0])
    columns["break"] = pa.array([False, False, False])
    columns["commit_id"] = pa.array([0, 0, 0] if known else [None] * 3, pa.int64())
    columns["items"] = pa.array([[1], [2], [3]])
    columns["databases"] = columns["tables"] = pa.array([None] * 3, pa.list_(pa.string()))
    sample = sample_of(pa.table(columns))
    assert ("commit ids" in sample.known) is known
    assert "commit parents" in sample.known
    if known:
        assert [simulation(sample, "group-commit")(workers) for workers in (1, 4)] == [6, 6]


def _random_graph(seed: int) -> Graph:
    chance = random.Random(seed)
    return [
        (
            chance.randint(1, 9),
            {chance.randrange(30) for _ in range(chance.randint(1, 3))},
            chance.random() < 0.04,
        )
        for _ in range(200)
    ]


def _naive(graph: Graph, workers: int, *, overtakes: bool) -> int:
    """Time step by time step: the head, or the oldest that may, starts where a worker is free."""
    left, visible, running, now = list(range(len(graph))), 0, dict[int, int](), 0
    while visible < len(graph):
        while left and len(running) < workers:
            ready = (row for row in (left if overtakes else left[:1]) if _may(graph, row, visible))
            row = next(ready, -1)
            if row < 0:
                break
            left.remove(row)
            running[row] = now + graph[row][0]
        now += 1
        while visible in running and running[visible] <= now:
            del running[visible]
            visible += 1
    return now


def _may(graph: Graph, row: int, visible: int) -> bool:
    """Whether nothing that is not visible stands before it and concerns it."""
    _, items, alone = graph[row]
    return all(
        not (alone or graph[before][2] or items & graph[before][1])
        for before in range(visible, row)
    )


def _columns(graph: Graph) -> tuple[Any, Any, Any]:
    pairs = [(row, item) for row, each in enumerate(graph) for item in each[1] if not each[2]]
    rows, items = np.array(pairs, dtype=np.int64).T
    lengths = np.array([each[0] for each in graph])
    return lengths, newest_writers(rows, items, len(graph)), np.array([each[2] for each in graph])


@pytest.mark.parametrize("seed", range(4))
def test_schedules_take_the_time_of_a_naive_simulation(seed: int) -> None:
    graph = _random_graph(seed)
    lengths, waited, alone = _columns(graph)
    whole = waits(np.arange(1, len(graph) + 1), waited, alone)
    for workers in (1, 2, 5, 200):
        assert whoever_may(lengths, whole, workers) == _naive(graph, workers, overtakes=True)
        assert at_the_head(lengths, whole, workers) == _naive(graph, workers, overtakes=False)
        barrier = until_conflict(lengths, waited, alone, workers)
        assert at_the_head(lengths, whole, workers) <= barrier <= lengths.sum()
    assert whoever_may(lengths, whole, 200) == chain(whole, lengths)[-1]


def test_a_barrier_is_serial_until_two_in_a_row_have_no_conflict() -> None:
    lengths, alone = np.full(6, 10), np.zeros(6, dtype=bool)
    apart = np.zeros(6, dtype=np.int64)
    assert until_conflict(lengths, apart, alone, 6) == 10
    third_follows_first = np.array([0, 0, 1, 0, 0, 0])
    assert until_conflict(lengths, third_follows_first, alone, 6) == 20
    each_follows_the_one_before = np.arange(6)
    assert until_conflict(lengths, each_follows_the_one_before, alone, 6) == 60


def test_groups_lanes_and_partitions_on_streams_whose_time_is_known() -> None:
    lengths, alone = np.full(6, 10), np.zeros(6, dtype=bool)
    groups = np.array([1, 1, 1, 2, 0, 0])
    assert group_begins(groups).tolist() == [0, 0, 0, 3, 4, 5]
    one_lane, lanes = np.zeros(6, dtype=np.int64), np.array([0, 1, 2, 0, 1, 2])
    assert in_lanes(lengths, one_lane, groups, alone, 6) == 40
    assert in_lanes(lengths, one_lane, groups, alone, 1) == 60
    assert in_lanes(lengths, lanes, one_lane, alone, 3) == 20
    rows = np.arange(6)
    two = Partitions(rows, rows % 2, alone, divided=False)
    assert [with_owners(lengths, two, workers) for workers in (1, 2, 4, None)] == [60, 30, 30, 30]
    unknown = rows == 3
    locked = Partitions(rows, rows % 2, unknown, divided=False)
    assert with_owners(lengths, locked, 4) == 20 + 10 + 10
    parts = Partitions(np.repeat(rows, 2), np.tile([0, 1], 6), alone, divided=True)
    assert [with_owners(lengths, parts, workers) for workers in (1, 2, None)] == [60, 30, 30]


def test_waits_know_resets_and_those_that_run_alone() -> None:
    numbers, alone = np.array([2, 3, 0, 4, 2, 3]), np.array([0, 0, 1, 0, 0, 0], dtype=bool)
    assert filled(numbers).tolist() == [2, 3, 3, 4, 2, 3]
    waited = waits(filled(numbers), np.array([1, 2, 0, 1, 1, 1]), alone)
    assert waited.tolist() == [0, 1, 2, 3, 4, 4]
    assert epochs(waited, ~alone) == 4
