"""Who holds the certification info's collection back, against a plain computation piece by piece.

Method: members report at random; the time is cut at each report and at each part's border, so that
nothing changes within a piece.
"""

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.profile import profile
from groupcert.certifier.audit.profile.held import Parts
from groupcert.certifier.audit.profile.holders import HOLDER, holders
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.rows.pace import BUCKETS
from groupcert.certifier.history.schema import FORMAT_VERSION, RecordKind, Row, Verdict
from tests.audit.histories import BEGIN_US, write

MEMBERS = ("m1", "m2", "m3")
SLOW = "m2"
_FRAME = pl.Schema(
    {
        **dict.fromkeys(("kind", "origin"), pl.String()),
        **dict.fromkeys(("stable_version", "version", "decided_us"), pl.Int64()),
        "members": pl.List(pl.String),
    }
)


def reports(seed: int) -> list[Row]:
    """A view of two members, then one of three, of whom one is slow; and their reports."""
    chance, at_us, version = random.Random(seed), BEGIN_US, 0
    reported = dict.fromkeys(MEMBERS, 0)
    rows: list[Row] = []

    def row(kind: RecordKind, **columns: Any) -> None:
        rows.append({"kind": kind.value, "decided_us": at_us, "version": version, **columns})

    row(RecordKind.VIEW_CHANGE, members=list(MEMBERS[:2]))
    for number in range(400):
        at_us += chance.choice((0, 1_000, 250_000, 900_000))
        version += chance.randrange(50)
        if number == 150:
            row(RecordKind.VIEW_CHANGE, members=list(MEMBERS))
        name = chance.choice(MEMBERS[:2] if number < 160 else MEMBERS)
        behind = chance.randrange(400) if name == SLOW else chance.randrange(3)
        reported[name] = max(version - behind, reported[name], 0)
        row(RecordKind.REPORT, origin=name, stable_version=reported[name])
    return rows


def naive(rows: list[Row], parts: Parts) -> dict[tuple[str | None, int], list[int]]:
    """How long each held in each part, and by how much at most."""
    borders = [parts.first_us + number * parts.size_us for number in range(1, BUCKETS)]
    times = [_int(row, "decided_us") for row in rows]
    points = sorted({*times, *(each for each in borders if times[0] < each < times[-1])})
    found: dict[tuple[str | None, int], list[int]] = {}
    for begin, end in pairwise(points):
        members: list[str] = []
        last: dict[str, int] = {}
        for row in rows:
            if _int(row, "decided_us") > begin:
                break
            if row["kind"] == RecordKind.VIEW_CHANGE:
                given = row["members"]
                assert isinstance(given, list)
                members = [str(each) for each in given]
            else:
                last[str(row["origin"])] = _int(row, "stable_version")
        if any(each not in last for each in members):
            continue
        ranked = sorted((last[each], each) for each in members)
        name = ranked[0][1] if ranked[0][0] < ranked[-1][0] else None
        part = min((begin - parts.first_us) // parts.size_us, BUCKETS - 1)
        told = found.setdefault((name, part), [0, 0])
        told[0] += end - begin
        told[1] = max(told[1], ranked[1][0] - ranked[0][0])
    return found


def _int(row: Row, name: str) -> int:
    found = row[name]
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_holders_are_those_of_each_piece_of_the_time(size: int) -> None:
    rows = reports(size)
    last_us = _int(rows[-1], "decided_us")
    parts = Parts(BEGIN_US, (last_us - BEGIN_US) // BUCKETS + 1)
    frame = pl.DataFrame(rows, schema=_FRAME)
    found = pl.concat(holders(iter(frame.iter_slices(size)), parts))
    assert found.schema == HOLDER
    told = {
        (row["name"], row["part"]): [row["held_us"], row["behind"]]
        for row in found.to_dicts()
        if row["held_us"]
    }
    assert told == naive(rows, parts)
    behind = [
        _int(row, "version") - _int(row, "stable_version")
        for row in rows[1:]
        if SLOW in row.values()
    ]
    assert found.filter(pl.col("name") == SLOW)["unexecuted"].max() == max(behind) > 100


def history(rows: list[Row]) -> list[Row]:
    """A member's log with reports, between transactions and a collection."""
    told: list[Row] = []
    begin: Row = {"kind": RecordKind.START.value, "version": 0, "decided_us": BEGIN_US}
    begin["settings"] = '{"source":"member","group_source":"3e11fa47-71ca-11e1-9e33-c80aa9429562"}'
    numbers = dict.fromkeys(("sequence_number", "last_committed_global", "stable_version"), 0)
    decided: Row = {"kind": RecordKind.TRANSACTION.value, "verdict": Verdict.CERTIFIED.value}
    decided |= {"version": 1, "decided_us": BEGIN_US, "write_set": [7], "is_local": True}
    for number, row in enumerate([begin | numbers | {"collected_version": 0}, decided, *rows], 1):
        told.append(
            {
                "format_version": FORMAT_VERSION,
                "observer": "m1",
                "history": "1",
                "place": number << 24,
                **row,
            }
        )
    return told


def test_a_slow_member_is_named_with_its_share_of_the_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = reports(1)
    summary = profile.run(Log(spark, write(tmp_path, history(rows)))).summary
    told: Any = summary["holders"]
    parts = Parts(told["begin_us"], told["bucket_us"])
    found = naive(rows, parts)
    held: Counter[str | None] = Counter()
    for (name, _), (us, _) in found.items():
        held[name] += us
    assert told["known_us"] == held.total()
    assert told["members"][0]["member"] == SLOW and told["members"][0]["share"] > 0.7
    for each in told["members"]:
        name = each["member"]
        assert each["held_us"] == held[name]
        assert each["share"] == pytest.approx(held[name] / held.total(), abs=1e-6)
        assert each["behind_max"] == max(most for (of, _), (_, most) in found.items() if of == name)
    for part, (holder, behind) in enumerate(
        zip(told["by_part"]["holder"], told["by_part"]["behind"], strict=True)
    ):
        mine = {name: us for (name, at), (us, _) in found.items() if at == part}
        if holder is None:
            assert not mine or mine.get(None) == max(mine.values())
            continue
        name = told["members"][holder]["member"]
        assert mine[name] == max(mine.values()) and behind == found[name, part][1]


def test_nobody_is_named_where_reports_are_not_known(spark: SparkSession, tmp_path: Path) -> None:
    """A member of the view has made none, or there is no view."""
    silent = [row for row in reports(2) if row.get("origin") != SLOW]
    rows = history(silent) + [{**row, "observer": "m9"} for row in history(silent[1:])]
    paths = write(tmp_path, rows[: len(silent) + 2], rows[len(silent) + 2 :])
    assert profile.run(Log(spark, paths)).summary["holders"] is None
