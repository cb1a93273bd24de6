"""The profile job against plain sequential computations over the same rows.

Method: a member's history of a random order, with keys and with what the seeds' schemes ask for,
in one log with another member's and with a binary log's; the job runs once.
"""

import gzip
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession

from groupcert.applier.whatif.trace_work import TraceWork
from groupcert.certifier.audit.answers.result import Result
from groupcert.certifier.audit.profile import profile
from groupcert.certifier.audit.profile import sample as sampling
from groupcert.certifier.audit.profile.profile import freed
from groupcert.certifier.audit.profile.sample import SOURCE, lines
from groupcert.certifier.audit.rows import stretches
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.rows.checks import hexadecimal
from groupcert.certifier.audit.rows.pace import BUCKETS
from groupcert.certifier.core import CertifierOptions
from groupcert.certifier.history.schema import FORMAT_VERSION, RecordKind, Row
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
        row: Row = {"format_version": FORMAT_VERSION, "observer": "source", "history": "1"}
        row["kind"] = kind.value
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
        row: Row = {"format_version": FORMAT_VERSION, "observer": "unbroken", "history": "1"}
        row["number"] = number
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
    monkeypatch.setattr(sampling, "ROWS_MAX", 50)
    sampled = sampling.sampled_rows(log, log.histories[0])
    assert [row["number"] for row in sampled] == list(range(10**6 + 81, 10**6 + 131))
    scheduled = pl.DataFrame(stretches.scheduled_rows(log).toArrow())
    known = pl.concat(stretches.lengths_of(log).known(iter([scheduled])))
    assert set(known["bucket"]) == set(range(105))


@pytest.fixture(scope="module")
def profiled(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, list[Row]]:
    """The job's result and the rows that its sample was taken from; stretches are short."""
    rows, other = _told(1, "m1"), _told(1, "m2")[:500]
    folder = tmp_path_factory.mktemp("profile")
    paths = write(folder, rows, other, _binary_log(), _unbroken())
    with pytest.MonkeyPatch.context() as patch:
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


def _took(row: Row) -> int:
    """How long a transaction was executed, without the wait for its turn."""
    return _int(row, "executed_us") - _int(row, "started_us")


def _path_by_stamps(rows: list[Row]) -> tuple[int, int]:
    """Work and critical path by a loop over everything before each transaction."""
    done: dict[int, int] = {}
    work = last = floor = 0
    for row in _applied(rows):
        if row["kind"] == RecordKind.VIEW_CHANGE:
            floor = last
            continue
        length = _took(row)
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
        length = 0 if view else _took(row)
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


def _path_of_a_replica(rows: list[Row], unit: int) -> tuple[int, int]:
    """Work and critical path if each certified transaction waits for the last writers of its items,
    whoever executed these, and for all before them; those of clients take `unit`.
    """
    ends: list[int] = [0]
    writers: dict[int, int] = {}
    work = floor = 0
    for row in rows:
        view = row["kind"] == RecordKind.VIEW_CHANGE
        if not view and row.get("verdict") != "certified":
            continue
        items = _ints(row, "write_set")
        before = max([floor, *(writers.get(item, 0) for item in items)])
        if view or not items:
            before, floor = len(ends) - 1, len(ends)
        length = 0 if view else unit if row["is_local"] else _took(row)
        ends.append(max(ends[: before + 1]) + length)
        writers |= dict.fromkeys(items, len(ends) - 1)
        work += length
    return work, max(ends)


def test_a_replica_executes_what_clients_did_too(profiled: tuple[Result, list[Row]]) -> None:
    result, rows = profiled
    told: Any = result.summary["replica"]
    certified = [row for row in rows if row.get("verdict") == "certified"]
    timed = [_took(row) for row in certified if not row["is_local"]]
    unit = sum(timed) // len(timed)
    assert (told["observer"], told["rule"]) == ("m1", "last_writers")
    assert told["transactions"] == len(certified) > len(timed)
    assert (told["estimated"], told["unit_us"]) == (len(certified) - len(timed), unit)
    assert (told["work"], told["critical_path"]) == _path_of_a_replica(rows, unit)
    assert told["mean"] == pytest.approx(told["work"] / told["critical_path"], abs=1e-3)
    assert told["forced_cuts"] == 0


def test_a_replica_has_the_stamps_where_all_have_some(spark: SparkSession, tmp_path: Path) -> None:
    """And no step of Spark more; nothing is said of a history without certified transactions."""
    write_as_is(tmp_path / "stamped", [{**row, "is_local": False} for row in _unbroken()])
    log = Log(spark, [str(tmp_path / "stamped")])
    sums = {"transactions": 210, "work": 210, "path": 53, "width": 4, "forced": 0}
    told: Any = freed(log, log.histories[0], sums).replica
    assert (told["rule"], told["mean"]) == ("stamps", round(210 / 53, 3))
    assert (told["estimated"], told["unit_us"]) == (0, None)
    write_as_is(tmp_path / "none", [_unbroken()[0] | {"verdict": "conflict"}])
    log = Log(spark, [str(tmp_path / "none")])
    assert freed(log, log.histories[0], dict.fromkeys(sums, 0)).replica is None


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
        "has_tables": True,
    }
    assert [work.duration_us for work in transactions] == [_took(row) for row in executed]
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


def _transactions(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == RecordKind.TRANSACTION]


def test_classes_are_ranked_by_the_time_that_they_wasted(
    profiled: tuple[Result, list[Row]],
) -> None:
    result, rows = profiled
    told: Any = result.summary["classes"]
    by_tables: dict[str, list[Row]] = {}
    for row in _transactions(rows):
        tables = sorted({TABLES[item % 3] for item in _ints(row, "write_set")})
        by_tables.setdefault(", ".join(tables), []).append(row)
    assert told["observer"] == "m1" and told["classes"] == len(by_tables) == len(told["first"]) > 4
    assert {each["tables"] for each in told["first"]} == set(by_tables)
    for each in told["first"]:
        mine = by_tables[each["tables"]]
        aborted = [row for row in mine if row["verdict"] != "certified"]
        took = [_took(row) for row in mine if row.get("sequence_number") and row not in aborted]
        assert (each["transactions"], each["aborted"]) == (len(mine), len(aborted))
        assert each["share"] == pytest.approx(len(mine) / len(_transactions(rows)), abs=1e-6)
        assert each["abort_rate"] == pytest.approx(len(aborted) / len(mine), abs=1e-6)
        assert each["mean_us"] == sum(took) // len(took)
        assert each["wasted_us"] == len(aborted) * sum(took) // len(took)
    wasted = [each["wasted_us"] for each in told["first"]]
    assert wasted == sorted(wasted, reverse=True) and wasted[0] > 0
    assert told["wasted_us"] == sum(wasted)


def _age(row: Row) -> int:
    return _int(row, "version") - (row["verdict"] == "certified") - _int(row, "snapshot_version")


def test_ages_of_snapshots_are_told_by_origin_and_the_oldest_by_name(
    profiled: tuple[Result, list[Row]],
) -> None:
    result, rows = profiled
    told: Any = result.summary["snapshots"]
    aged = [row for row in _transactions(rows) if _age(row) >= 0]
    assert told["unknown"] == len(_transactions(rows)) - len(aged)
    assert sorted(each["origin"] for each in told["by_origin"]) == ["m1", "m2", "m3"]
    for each in told["by_origin"]:
        mine = sorted(_age(row) for row in aged if row["origin"] == each["origin"])
        assert each["transactions"] == len(mine) and each["max"] == mine[-1]
        for percent in (50, 95):
            exact = mine[-(-len(mine) * percent // 100) - 1]
            assert exact <= each[f"p{percent}"] <= 1.011 * exact
    by_age = sorted(aged, key=lambda row: (-_age(row), _int(row, "place")))
    first: dict[object, Row] = {}
    for row in by_age:
        first.setdefault((row["origin"], row["snapshot_version"]), row)
    oldest = list(first.values())[:10]
    assert oldest != by_age[:10], "some have the same"
    assert [(each["place"], each["age"]) for each in told["oldest"]] == [
        (row["place"], _age(row)) for row in oldest
    ]
    for each, row in zip(told["oldest"], oldest, strict=True):
        known = row["verdict"] == "certified"
        gtid = f"{row['gtid_source']!s}:{row['gtid_number']!s}" if known else None
        names = ("verdict", "origin", "snapshot_version")
        assert [each[name] for name in names] == [row[name] for name in names]
        assert each["gtid"] == gtid


def test_distances_of_stamps_are_counted_by_powers_of_two(
    profiled: tuple[Result, list[Row]],
) -> None:
    result, rows = profiled
    told: Any = result.summary["distances"]
    found = [
        _int(row, "sequence_number") - _int(row, "last_committed")
        for row in _applied(rows)
        if row["kind"] == RecordKind.TRANSACTION
    ]
    assert [each["from"] for each in told["by_power"]] == [
        2**n for n in range(len(told["by_power"]))
    ]
    for each in told["by_power"]:
        assert each["transactions"] == sum(each["from"] <= n <= each["to"] for n in found)
    assert sum(each["transactions"] for each in told["by_power"]) == len(found)
    assert told["by_power"][-1]["to"] >= max(found) > 4


def test_certification_info_holds_what_was_written_and_not_purged(
    profiled: tuple[Result, list[Row]],
) -> None:
    result, rows = profiled
    told: Any = result.summary["certification_info"]
    held: dict[int, int] = {}
    sizes, marks = [0] * BUCKETS, [0] * BUCKETS
    for row in rows:
        part = (_int(row, "decided_us") - told["begin_us"]) // told["bucket_us"]
        if row["kind"] == RecordKind.COLLECTION:
            marks[part] += 1
            gone = [item for item, last in held.items() if last <= _int(row, "collected_version")]
            assert len(gone) == row["purged_items"]
            for item in gone:
                del held[item]
        elif row.get("verdict") == "certified":
            held |= dict.fromkeys(_ints(row, "write_set"), _int(row, "version"))
        sizes[part:] = [len(held)] * (BUCKETS - part)
    assert told["held"] == sizes and max(sizes) > 20
    assert told["collections"] == marks and sum(marks) > 9
    assert told["since_start"] is False


def test_heat_counts_conflicts_over_hot_items_by_time(
    profiled: tuple[Result, list[Row]],
) -> None:
    result, rows = profiled
    summary: Any = result.summary
    told = summary["heat"]
    assert len(told["items"]) == 20
    for hot, each in zip(summary["hot_items"], told["items"], strict=True):
        assert (each["item"], sum(each["conflicts"])) == (hot["item"], hot["conflicts"])
        counts = [0] * BUCKETS
        for row in rows:
            if row.get("verdict") == "conflict" and each["item"] == hexadecimal(
                _int(row, "winner_item")
            ):
                counts[(_int(row, "decided_us") - told["begin_us"]) // told["bucket_us"]] += 1
        assert each["conflicts"] == counts
