"""Stable sets, checked against the members' reports of what they have executed.

A member counts with its last report. Nothing is known before each member of the view has made one
in this history, nor before there is a view.
"""

from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...history.schema import RecordKind, Source
from ..answers.findings import Code
from ..rows.checks import FOUND, Check, notes, words, wrong_rows
from ..rows.log import Log
from ..spark.walks import Frames, in_order, walk

TOLD_BY = "told by"
"""The note of a row that later ones are judged by."""
_KINDS = (RecordKind.REPORT, RecordKind.VIEW_CHANGE, RecordKind.STABLE_SET)
_BEYOND = pl.Schema(
    {
        "h": pl.Int32(),
        "number": pl.Int64(),
        "place": pl.Int64(),
        "stable_version": pl.Int64(),
        "reported": pl.Int64(),
        "member": pl.String(),
        "since": pl.Int64(),
    }
)


def wrong_stable_sets(log: Log) -> list[DataFrame]:
    """Returns the stable sets beyond a report of a member of the view; nothing if no history can
    have such.

    Cost: a walk over the reports, of which each member makes one a second.
    """
    told = [each.h for each in log.histories if each.source in (Source.MEMBER, Source.TOTAL_ORDER)]
    if not told:
        return []
    kinds = [kind.value for kind in _KINDS]
    reports = log.rows.where(F.col("h").isin(told) & F.col("kind").isin(*kinds)).select(
        "h", "number", "place", "kind", "origin", "stable_version", "members"
    )
    return [walk(in_order(reports, ["h"], ["number"]), _beyond_reports, FOUND)]


def _beyond_reports(frames: Frames) -> Frames:
    """Yields the findings; and as notes the rows that later stable sets are judged by."""
    check = Check(
        Code.STABLE_SET_WRONG,
        pl.lit(value=True),
        words("up to version ", pl.col("reported"), " at most"),
        words("version ", pl.col("stable_version")),
        words("member ", pl.col("member"), " had reported no more, in row ", pl.col("since")),
        pl.col("since"),
    )
    known = _Reports(-1)
    for frame in frames:
        beyond: list[tuple[object, ...]] = []
        for row in frame.iter_rows(named=True):
            if row["h"] != known.h:
                yield known.told_by()
                known = _Reports(row["h"])
            beyond += known.beyond(row)
        if beyond:
            yield wrong_rows(pl.DataFrame(beyond, schema=_BEYOND, orient="row"), [check])
    yield known.told_by()


class _Report(NamedTuple):
    """A member's reports: the newest version, the row that had it, and the last row."""

    version: int = 0
    at: int = 0
    last: int = 0


class _Reports:
    """The view of a history and the last report of each member; `since`: the row from which on a
    report has to be known.
    """

    def __init__(self, h: int) -> None:
        self.h = h
        self.members: list[str] = []
        self.viewed = 0
        self.reports: dict[str, _Report] = {}

    def told_by(self) -> pl.DataFrame:
        """Returns as notes the rows that have told what is known."""
        numbers = {self.viewed, *(at for each in self.reports.values() for at in each[1:])}
        rows = [(self.h, number) for number in sorted(numbers) if number]
        kinds = {"h": pl.Int32(), "number": pl.Int64()}
        return notes(TOLD_BY, pl.DataFrame(rows, schema=kinds, orient="row"))

    def beyond(self, row: dict[str, object]) -> Iterator[tuple[object, ...]]:
        """Takes the next row; yields it as `_BEYOND` if it is a stable set beyond a report."""
        number, version, members = row["number"], row["stable_version"], row["members"]
        assert isinstance(number, int)
        if row["kind"] == RecordKind.VIEW_CHANGE:
            self.members, self.viewed = list(members) if isinstance(members, list) else [], number
        elif not isinstance(version, int):
            return
        elif row["kind"] == RecordKind.REPORT:
            before = self.reports.get(str(row["origin"]), _Report())
            newest = max((version, number), (before.version, before.at), key=itemgetter(0))
            self.reports[str(row["origin"])] = _Report(*newest, number)
        elif self.members and all(each in self.reports for each in self.members):
            (reported, since), member = min(
                ((self.reports[each].version, self.reports[each].last), each)
                for each in self.members
            )
            if version > reported:
                since = min(since, self.viewed)
                yield row["h"], number, row["place"], version, reported, member, since
