"""Checks of stable sets, of what was collected up to them, and of the window's edge behind that.

A stable set is what all members of the view have executed. It may not go beyond the last report of
any of them; nothing is known before each has made one in this history, nor before there is a view.
A collection purges items up to it: how many there were to purge is told to its row by the walk over
items (`rows/items.py`). Of stable sets that are GTID sets (traces) that is not counted: they may
purge beyond a version.

Source: WL#8440, garbage collection.
"""

from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...history.schema import RecordKind, Source
from ..answers.findings import Code
from ..rows.certification_log import Log
from ..rows.checks import FOUND, Check, notes, words, wrong_rows
from ..rows.coded_columns import is_kind
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


def window_checks() -> list[Check]:
    """Returns the checks of windows, stable sets and view changes against the state before them."""
    view, edge = is_kind(RecordKind.VIEW_CHANGE), pl.col("last_committed_global")
    collection, stable = is_kind(RecordKind.COLLECTION), is_kind(RecordKind.STABLE_SET)
    met_edge, met_stable = pl.col("met_edge"), pl.col("met_stable")
    purged, version = pl.col("purged_items"), pl.col("version")
    first, second = pl.col("last_committed"), pl.col("sequence_number")
    after_view = pl.when(pl.col("resets_clock")).then(1).otherwise(met_edge)
    closes = (purged > 0) & ~pl.col("met_closed")
    after_collection = pl.when(closes).then(pl.col("met_sequence")).otherwise(met_edge)
    judged = pl.col("met_closed").is_not_null() & ~pl.col("met_tight")
    reached = pl.col("stable_version")
    return [
        Check(
            Code.VIEW_CHANGE_WRONG,
            pl.col("decided") & view & ((first != 0) | (second != 0) | (edge != after_view)),
            words("0, 0; edge ", after_view),
            words(first, ", ", second, "; edge ", edge),
            pl.lit("a view change is applied alone, and only its joiner's clock begins again"),
        ),
        Check(
            Code.STABLE_SET_WRONG,
            stable & ((reached < met_stable) | (reached > version)),
            words("from version ", met_stable, " to ", version),
            words("version ", reached),
            pl.lit("what all members have executed only grows, and is certified"),
        ),
        Check(
            Code.PURGED_TOO_EARLY,
            collection & (pl.col("collected_version") > met_stable),
            words("up to version ", met_stable, " at most, which all had executed"),
            words("up to version ", pl.col("collected_version")),
            words(purged, " items were purged"),
        ),
        Check(
            Code.WINDOW_WRONG,
            collection & judged & (edge != after_collection),
            after_collection,
            edge,
            words(
                "it purged ",
                purged,
                " items; the last number assigned is ",
                pl.col("met_sequence"),
                ", the edge before it ",
                met_edge,
            ),
        ),
    ]


def purge_checks() -> list[Check]:
    """Returns the checks of what collections purged, for rows with the state before them and the
    facts `purged` and `purged_sequence`.
    """
    collection = is_kind(RecordKind.COLLECTION) & pl.col("decided")
    collected, edge = pl.col("met_collected"), pl.col("last_committed_global")
    known = collection & pl.col("met_stable_set").is_null()
    known &= collected >= pl.col("start_version")
    found, expected = pl.col("purged_items"), pl.col("purged").fill_null(0)
    after = pl.max_horizontal("met_edge", "purged_sequence")
    span = (collected + 1, pl.col("collected_version"))
    return [
        Check(
            Code.COLLECTION_WRONG,
            known & (found != expected),
            words(expected, " items"),
            words(found, " items"),
            words("it collected the versions ", span[0], " to ", span[1]),
            *span,
        ),
        Check(
            Code.WINDOW_WRONG,
            known & pl.col("met_tight") & (edge != after),
            after,
            edge,
            words("the largest sequence number that it purged is ", pl.col("purged_sequence")),
            *span,
        ),
    ]


def wrong_stable_sets(log: Log) -> list[DataFrame]:
    """Returns the stable sets beyond a report of a member of the view; nothing if no history can
    have such.

    Cost: a walk over the reports, of which each member makes one a second.
    """
    told = [
        history.h
        for history in log.histories
        if history.source in (Source.MEMBER, Source.TOTAL_ORDER)
    ]
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
