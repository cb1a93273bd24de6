"""Who holds the certification info's collection back: whose report bounds the stable set.

The stable set advances to the least of what the members of the view have reported as executed. A
member that executes slowly, or stands still, keeps every other member's memory full, and nothing
says so: without this, a certification info that grows has no culprit.

A member counts with its last report, as in `verify/stable_sets.py`. Nothing is known before each
member of the view has made one in this history. While all have reported the same, nobody holds; of
several that have reported the least, the first by name does.
Members report in turn, once a second, so that in a healthy group each is behind for a while: who
holds is told by its share of the time, and by what it had not executed when it reported itself.
"""

from typing import NamedTuple

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...history.schema import RecordKind
from ..answers.result import JsonObject
from ..rows.certification_log import Log
from ..rows.pace import BUCKETS
from ..rows.surveyed_history import History
from ..spark.walks import Frames, in_order
from .held import Parts, is_known, parts_of

HOLDER = pl.Schema(
    {
        "name": pl.String(),
        **dict.fromkeys(("part", "held_us", "behind", "unexecuted"), pl.Int64()),
    }
)
"""A member in a part of the time: how long its report was the least, by how many versions it was
behind the next member's at most, and how many it had not executed when it reported. Of no `name`:
for how long nobody held, with all reports known.
"""
_KINDS = (RecordKind.REPORT, RecordKind.VIEW_CHANGE)


def reports_of(log: Log, history: History) -> DataFrame:
    """Returns the reports of the members of a history, and its views, in order."""
    kinds = [kind.value for kind in _KINDS]
    mine = log.rows.where((F.col("h") == history.h) & F.col("kind").isin(kinds))
    columns = ("kind", "origin", "stable_version", "version", "members", "decided_us")
    return in_order(mine.select("h", "number", *columns), ["h"], ["number"])


def holders(frames: Frames, parts: Parts) -> Frames:
    """Yields `HOLDER` of rows of `reports_of`."""
    told = _Reports(parts)
    for frame in frames:
        for row in frame.iter_rows(named=True):
            told.take(row)
    yield pl.DataFrame(told.rows(), schema=HOLDER, orient="row")


class _Sum(NamedTuple):
    """Of a member in a part: as `HOLDER`."""

    held_us: int = 0
    behind: int = 0
    unexecuted: int = 0


class _Reports:
    """The view, the last report of each member, and who has held since when."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.members: list[str] = []
        self.reports: dict[str, int] = {}
        self.sums: dict[tuple[str | None, int], _Sum] = {}
        self.now_us: int | None = None

    def take(self, row: dict[str, object]) -> None:
        """Takes the next row: until then the reports were those before it."""
        at, version, members = row["decided_us"], row["stable_version"], row["members"]
        if isinstance(at, int):
            self._reach(at)
        if row["kind"] == RecordKind.VIEW_CHANGE:
            self.members = list(members) if isinstance(members, list) else []
        elif isinstance(version, int):
            name, newest = str(row["origin"]), row["version"]
            self.reports[name] = max(self.reports.get(name, 0), version)
            if isinstance(newest, int) and self.now_us is not None:
                self._add(name, self._part(self.now_us), 0, 0, newest - version)

    def rows(self) -> list[tuple[object, ...]]:
        """Returns the sums of each member in each part of the time, as rows of `HOLDER`."""
        return [(*key, *sums) for key, sums in self.sums.items()]

    def _reach(self, at_us: int) -> None:
        """Counts the time up to now for who held in it, in each part that it touches."""
        begin, self.now_us = self.now_us, at_us
        if begin is None or not self.members or not self.reports.keys() >= set(self.members):
            return
        (least, name), *others = sorted((self.reports[member], member) for member in self.members)
        behind = others[0][0] - least if others else 0
        is_held = bool(others) and others[-1][0] > least
        while begin < at_us:
            part = self._part(begin)
            end = self.parts.first_us + (part + 1) * self.parts.size_us
            until = at_us if part == BUCKETS - 1 else min(at_us, end)
            self._add(name if is_held else None, part, until - begin, behind, 0)
            begin = until

    def _part(self, at_us: int) -> int:
        part = (at_us - self.parts.first_us) // self.parts.size_us
        return min(max(part, 0), BUCKETS - 1)

    def _add(self, name: str | None, part: int, held: int, behind: int, unexecuted: int) -> None:
        before = self.sums.get((name, part), _Sum())
        self.sums[name, part] = _Sum(
            before.held_us + held, max(before.behind, behind), max(before.unexecuted, unexecuted)
        )


def by_member(history: History, found: pl.DataFrame, most: int) -> JsonObject | None:
    """Returns the members that held the collection back, the longest first; None: not known.

    `known_us`: time in which all members' reports were known. `by_part`: the member that held for
    longest in each part of the time, as an index into `members`, and by how many versions; null:
    none did.

    Args:
        found: rows of `HOLDER`.
        most: so many members are told.
    """
    known_us = int(found["held_us"].sum())
    if not is_known(history) or not known_us:
        return None
    named = found.filter(pl.col("name").is_not_null())
    sums = named.group_by("name").agg(
        pl.col("held_us").sum(), pl.col("behind").max(), pl.col("unexecuted").max()
    )
    first = sums.sort("held_us", "name", descending=[True, False]).head(most)
    index = {name: number for number, name in enumerate(first["name"])}
    window = parts_of(history)
    of_part = [_longest(found.filter(pl.col("part") == part), index) for part in range(BUCKETS)]
    return {
        "observer": history.observer,
        "history": history.history,
        "begin_us": window.first_us,
        "bucket_us": window.size_us,
        "known_us": known_us,
        "members": [
            {
                "member": row["name"],
                "held_us": row["held_us"],
                "share": round(row["held_us"] / known_us, 6),
                "behind_max": row["behind"],
                "unexecuted_max": row["unexecuted"],
            }
            for row in first.to_dicts()
        ],
        "by_part": {
            "holder": [holder for holder, _ in of_part],
            "behind": [behind for _, behind in of_part],
        },
    }


def _longest(rows: pl.DataFrame, index: dict[str, int]) -> tuple[int | None, int | None]:
    """Returns the index of the member that held for longest in a part, and the versions by which it
    was behind; None, if none did.
    """
    if not rows["held_us"].sum():
        return None, None
    ordered = rows.sort("held_us", "name", descending=[True, False], nulls_last=True)
    longest = ordered.row(0, named=True)
    name = longest["name"]
    return (None, None) if name is None else (index.get(name), longest["behind"])
