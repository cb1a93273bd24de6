"""Checks as expressions over columns: when a row is wrong, what was expected, what was found.

All checks of a set of rows are one pass over them; texts are made for wrong rows only. An
expression has three values, as in SQL: what is not known is not wrong.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

import polars as pl
from pyspark.sql import DataFrame

from ..answers.findings import ROWS_MAX, Code, Finding
from ..answers.result import JsonObject
from ..spark.walks import Frames, gathered, walk
from .certification_log import Log

FOUND = pl.Schema(
    {
        "code": pl.String(),
        "h": pl.Int32(),
        "number": pl.Int64(),
        "place": pl.Int64(),
        **dict.fromkeys(("expected", "found", "witness"), pl.String()),
        **dict.fromkeys(("low", "high"), pl.Int64()),
    }
)
"""A wrong row, by one check."""
CODES = frozenset(code.value for code in Code)
LATER = (Code.REPORT_WRONG.value,)
"""Codes whose findings a new row may make at an old one. A new report may show REPORT_WRONG at
such a row, and an audit `--since` keeps it: whoever finds it says whether it is new.
"""
_COUNTED = pl.Schema({**FOUND, "count": pl.Int64()})
_NUMBERS = ("h", "number", "place", "low", "high")
Text = pl.Expr | str


class Check(NamedTuple):
    """One check: a row for which `wrong` is true is a finding.

    `witness`: the explanation for a person. `low`, `high`: numbers by which its consequences are
    found (`consequences.py`), such as the versions that are missing.
    """

    code: Code
    wrong: pl.Expr
    expected: pl.Expr
    found: pl.Expr
    witness: pl.Expr
    low: pl.Expr | None = None
    high: pl.Expr | None = None


class Found(NamedTuple):
    """A finding with the position of its row and the check's numbers."""

    finding: Finding
    h: int
    number: int
    low: int | None
    high: int | None


class Note(NamedTuple):
    """A row of `FOUND` that is no finding: something that a walk has to tell the driver, whose
    `code` says what.
    """

    code: str
    h: int
    number: int
    place: int
    told: str
    text: str
    low: int
    high: int


class FoundAll(NamedTuple):
    """The first findings of each code, and the number of all of them by code; and the notes."""

    found: list[Found]
    counts: Counter[str]
    notes: Sequence[Note] = ()


def as_kept(found: FoundAll) -> JsonObject:
    """Returns findings as a job keeps them for the next audit; `from_kept` is its inverse."""
    rows = [[*each.finding, each.number, each.low, each.high] for each in found.found]
    return {"counts": dict(found.counts), "found": rows}


def from_kept(log: Log, kept: JsonObject) -> FoundAll:
    """Returns the findings that a job has kept; none if it has kept nothing."""
    rows, counts = kept.get("found", []), kept.get("counts", {})
    assert isinstance(rows, list) and isinstance(counts, dict)
    found = []
    for code, *told, number, low, high in rows:
        finding = Finding(Code(code), *told)
        h = log.number_of((finding.observer, finding.history))
        found.append(Found(finding, h, number, low, high))
    return FoundAll(found, Counter(counts))


def merged(parts: Iterable[FoundAll]) -> FoundAll:
    """Returns the findings of several runs as those of one."""
    found: list[Found] = []
    counts: Counter[str] = Counter()
    for part in parts:
        found += part.found
        counts += part.counts
    return FoundAll(_first(sorted(found, key=_order)), counts)


def _first(found: Iterable[Found]) -> list[Found]:
    """Returns the first `ROWS_MAX` of each code."""
    counts: Counter[str] = Counter()
    kept = []
    for each in found:
        counts[each.finding.code.value] += 1
        if counts[each.finding.code.value] <= ROWS_MAX:
            kept.append(each)
    return kept


def words(*parts: Text) -> pl.Expr:
    """Returns a text from columns and words; columns without a value show as `none`."""
    return pl.concat_str(
        [
            pl.lit(part)
            if isinstance(part, str)
            else part.cast(pl.String).fill_null(pl.lit("none"))
            for part in parts
        ]
    )


def hexadecimal(item: int) -> str:
    """Returns an item as people see it."""
    return f"{item % 2**64:016x}"


def item_name(item: str) -> pl.Expr:
    """Returns the expression of a column's items as people see them."""
    return pl.col(item).map_elements(hexadecimal, return_dtype=pl.String)


def is_true(condition: pl.Expr) -> pl.Expr:
    """Returns whether a condition is known and true."""
    return condition.fill_null(value=False)


def wrong_rows(frame: pl.DataFrame, checks: Sequence[Check]) -> pl.DataFrame:
    """Returns the findings of the checks in a frame, which has `h`, `number` and `place`."""
    marks = [f"_wrong_{number}" for number in range(len(checks))]
    marked = frame.with_columns(
        is_true(check.wrong).alias(mark) for mark, check in zip(marks, checks, strict=True)
    )
    suspects = marked.filter(reduce(or_, map(pl.col, marks)))
    if not len(suspects):
        return pl.DataFrame(schema=FOUND)
    return pl.concat(
        suspects.filter(pl.col(mark)).select(_as_found(check))
        for mark, check in zip(marks, checks, strict=True)
    )


def _as_found(check: Check) -> list[pl.Expr]:
    nothing = pl.lit(None)
    texts = {"expected": check.expected, "found": check.found, "witness": check.witness}
    numbers = {"low": check.low, "high": check.high}
    return [
        pl.lit(check.code.value).alias("code"),
        *[pl.col(name).cast(FOUND[name]) for name in ("h", "number", "place")],
        *[text.cast(pl.String).alias(name) for name, text in texts.items()],
        *[
            (nothing if number is None else number).cast(pl.Int64).alias(name)
            for name, number in numbers.items()
        ],
    ]


def notes(code: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns rows as notes, with what they have of the columns of `FOUND`."""
    return rows.with_columns(pl.lit(code).alias("code"))


def collected(log: Log, wrong: DataFrame) -> FoundAll:
    """Brings findings, rows of `FOUND`, to the driver: the first `ROWS_MAX` of each code by place,
    and the number of all. All notes are kept. Findings of rows that were audited before are left
    out, but those that only now follow from what is told of such rows (`LATER`).
    """
    since = {each.h: each.since for each in log.histories if each.since}

    def counted(frames: Frames) -> Frames:
        new = (_new(frame, since) for frame in frames)
        return _first_of_each(rows.with_columns(pl.lit(1, pl.Int64).alias("count")) for rows in new)

    # Each task keeps the first of its own, so that one can take those of all.
    table = walk(gathered(walk(wrong, counted, _COUNTED)), _first_of_each, _COUNTED).toArrow()
    counts: Counter[str] = Counter()
    found, notes = [], []
    for row in table.to_pylist():
        if row["code"] not in CODES:
            h, number, place, low, high = (row[name] or 0 for name in _NUMBERS)
            told, text = row["expected"] or "", row["witness"] or ""
            notes.append(Note(row["code"], h, number, place, told, text, low, high))
            continue
        counts[row["code"]] += row["count"]
        if row["h"] is None:
            continue
        history = log.histories[row["h"]]
        finding = Finding(
            code=Code(row["code"]),
            observer=history.observer,
            history=history.history,
            place=row["place"],
            **{name: row[name] or "" for name in ("expected", "found", "witness")},
        )
        found.append(Found(finding, *(row[name] for name in ("h", "number", "low", "high"))))
    return FoundAll(sorted(found, key=_order), counts, notes)


def _new(found: pl.DataFrame, since: Mapping[int, int]) -> pl.DataFrame:
    """Returns the findings that the audit before has not made."""
    if not since:
        return found
    before = pl.col("h").replace_strict(since, default=0, return_dtype=pl.Int64)
    is_finding = pl.col("code").is_in(list(CODES)) & ~pl.col("code").is_in(LATER)
    return found.filter(~is_finding | (pl.col("number") > before))


def _first_of_each(frames: Frames) -> Frames:
    """Yields the first rows of each code by place, and a row without history that counts the others
    that there are. Notes are yielded as they come.

    Memory: `ROWS_MAX` rows of each code, and a batch.
    """
    kept: dict[str, pl.DataFrame] = {}
    for frame in frames:
        is_finding = pl.col("code").is_in(list(CODES))
        yield frame.filter(~is_finding)
        for (code,), rows in frame.filter(is_finding).group_by("code"):
            name = str(code)
            both = pl.concat([kept[name], rows]) if name in kept else rows
            kept[name] = _first_rows(both)
    yield from kept.values()


def _first_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the first `ROWS_MAX` rows of one code, and one that counts all others."""
    ordered = rows.filter(pl.col("h").is_not_null()).sort("place", "h", "number")
    first = ordered.head(ROWS_MAX)
    others = int(rows["count"].sum()) - int(first["count"].sum())
    if not others:
        return first
    nothing = [pl.lit(None, FOUND[name]).alias(name) for name in FOUND if name != "code"]
    count = rows.select(pl.col("code").first(), pl.lit(others, pl.Int64).alias("count"))
    return pl.concat([first, count.with_columns(nothing).select(first.columns)])


def _order(found: Found) -> tuple[int, int, str]:
    return found.finding.place, found.h, found.finding.code
