"""The profile job against plain sequential computations over the same rows.

Method: a member's history of a random order, with keys and with what the seeds' schemes ask for,
in one log with another member's and with a binary log's; the job runs once.
"""

import gzip
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession

from groupcert.applier.whatif.trace_work import TraceWork
from groupcert.certifier.audit.answers.result import Result
from groupcert.certifier.audit.profile import profile
from groupcert.certifier.audit.profile import sample as sampling
from groupcert.certifier.audit.profile.sample import SOURCE, lines
from groupcert.certifier.audit.rows import stretches
from groupcert.certifier.audit.rows.critical_path import epochs, filled, waits
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.core import CertifierOptions
from groupcert.certifier.history.schema import RecordKind, Row
from tests.audit.histories import BEGIN_US, Workload, random_order, rows_of, write, write_as_is

WORKLOAD = Workload(transactions=700, items=50, alone_share=0.03, view_every=90)
TABLES = ("shop.orders", "shop.lines", "bank.account")


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
    monkeypatch.setattr(sampling, "ROWS_MAX", 50)
    sampled = sampling.sampled_rows(log, told, 0)
    assert [row["number"] for row in sampled] == list(range(10**6 + 81, 10**6 + 131))
    buckets = log.certified.select(stretches.bucket_column(log, told).alias("bucket"))
    assert {row["bucket"] for row in buckets.collect()} == set(range(105))


@pytest.fixture(scope="module")
def profiled(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, list[Row]]:
    """The job's result and the rows that its sample was taken from; stretches are short."""
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


def test_the_sample_is_a_trace_of_what_an_applier_executed(
    profiled: tuple[Result, list[Row]],
) -> None:
    """Every transaction is certified again; keys, durations and what a scheme asks for go along."""
    result, rows = profiled
    told: Any = result.summary
    text = gzip.decompress(result.files["sample.jsonl.gz"]).decode()
    works = list(TraceWork(CertifierOptions(group_source=str(UUID(int=7)))).read(text.splitlines()))
    applied = _applied(rows)
    executed = [row for row in applied if row["kind"] == "transaction"]
    assert len(works) == len(applied)
    transactions = [work for work in works if work.gtid is not None]
    assert told["sample"] == {
        "file": "sample.jsonl.gz",
        "transactions": len(transactions),
        "share": 1.0,
    }
    assert [work.duration_us for work in transactions] == [
        _int(row, "committed_us") - _int(row, "started_us") for row in executed
    ]
    assert [set(work.keys) for work in transactions] == [
        {_key(item) for item in _ints(row, "write_set")} for row in executed
    ]
    headers = [work.header for work in transactions]
    assert [(each.commit_parent, each.commit_id) for each in headers] == [
        (row["commit_parent"], row["commit_id"]) for row in executed
    ]


def _sampled(version: int, **columns: Any) -> SparkRow:
    names = ("commit_parent", "commit_id", "domain_id", "duration_us", "databases", "write_keys")
    row = {"view": False, "origin": "m1", "version": version, **dict.fromkeys(names)}
    return SparkRow(**{**row, "snapshot_version": None, "write_set": [-1], **columns})


def test_a_snapshot_in_a_sample_is_a_range_and_an_item_without_key_has_one_table() -> None:
    view = SparkRow(view=True, view_id="1", members=["m1"])
    rows = [
        _sampled(11, snapshot_version=9),
        view,
        _sampled(13, snapshot_version=12, databases=["shop"], duration_us=5),
        _sampled(14, snapshot_version=13, write_set=[], commit_id=0),
        _sampled(15, write_set=[1, 2], write_keys=["shop.orders/1", ""]),
    ]
    found = [json.loads(line) for line in lines(rows)]
    assert found[1] == {"type": "view_change", "view_id": "1", "members": ["m1"]}
    del found[1]
    assert [each["gtid"] for each in found] == [f"{SOURCE}:{number}" for number in (1, 2, 3, 4)]
    snapshots = ["", f"{SOURCE}:1-1", f"{SOURCE}:1-2", f"{SOURCE}:1-3"]
    assert [each["snapshot_version"] for each in found] == snapshots
    assert [each["write_set"] for each in found] == [
        ["unknown/ffffffffffffffff"],
        ["unknown/ffffffffffffffff"],
        [],
        ["shop.orders/1", "unknown/0000000000000002"],
    ]
    assert (found[1]["databases"], found[1]["duration_us"]) == (["shop"], 5)
    assert found[2]["commit_id"] == 0


def test_waits_know_resets_and_those_that_run_alone() -> None:
    numbers, alone = np.array([2, 3, 0, 4, 2, 3]), np.array([0, 0, 1, 0, 0, 0], dtype=bool)
    assert filled(numbers).tolist() == [2, 3, 3, 4, 2, 3]
    waited = waits(filled(numbers), np.array([1, 2, 0, 1, 1, 1]), alone)
    assert waited.tolist() == [0, 1, 2, 3, 4, 4]
    assert epochs(waited, ~alone) == 4
