"""Agree: compares the members' histories with each other, place by place.

Only columns that all members must have recorded alike are compared, not a member's own (stamps,
times). A history is compared only between its first and its last row. Segments are compared by
digests first, rows only where the digests differ, by a walk over the places of a group.

Most votes say what a place should have; an export of the group's log outvotes all members: they
have copies of what it was made of. Of two, the later one by name differs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from ...history.schema import RecordKind, Source
from ..answers.findings import Code, Finding
from ..answers.result import JsonObject, Result
from ..rows.certification_log import Log
from ..rows.critical_path import Ints
from ..rows.gaps import Gaps, gaps_of, in_gap
from ..rows.surveyed_history import History
from ..rows.tails import tails_of
from ..spark.walks import Frames, in_order, walk, whole
from .identity import Foreign, foreign_locals, wrong_origin, wrong_settings

SHARED = (
    "kind",
    "version",
    "origin",
    "session",
    "transaction_id",
    "gtid_source",
    "gtid_number",
    "gtid_brought",
    "snapshot_version",
    "snapshot_set",
    "write_set",
    "read_set",
    "verdict",
    "reason",
    "winner_item",
    "winner_version",
    "winner_origin",
    "is_large",
    "domain_id",
    "stable_version",
    "stable_set",
    "collected_version",
    "purged_items",
    "view_id",
    "members",
    "reported_sequence",
    "reported_digest",
    "reported_place",
    "reported_chain",
)
"""The columns that all members record alike."""
SEGMENT_BITS = 36
"""Bits of a place below its segment, which is compared by one digest: 4,096 messages of the log."""
_SUM_BITS = 0xFFFFFFFF
_NOWHERE = 1 << 62
_PLACE = ("group", "place")
_COMPARISON = pl.Schema(
    {
        **dict.fromkeys(("h", "other", "open"), pl.Int64()),
        **dict.fromkeys(("places", "differing"), pl.Int64()),
        "is_absent": pl.Boolean(),
        **dict.fromkeys(("place", "model"), pl.Int64()),
    }
)
"""Of each two histories how many places were compared, and at how many they differ; or, of a
history, the first place at which it differs from its `model`, or lacks a row, and how many such
places there are. `open`: 1 of places of which rows may still come.
"""
_KEPT = ("pairs", "differing", "absent")
_PAIR = ("h", "other", "open")
_Flags = NDArray[np.bool_]
_PARTS = pl.Schema(dict.fromkeys(("h", "other", "open", "places", "group", "part"), pl.Int64()))
"""Of each two histories how many places are in parts that do not differ; or a part of a group that
does. A part is a segment and whether it is open: behind the place up to which the comparison is
final.
"""
_SUSPECTS_MAX = 1_000
"""Parts that are sought by their numbers; of more all between the first and the last are read."""


def run(log: Log) -> Result:
    """Compares the histories of each group with each other.

    From the place on where all rows are kept for the next audit nothing is final: of a history that
    ends before others its rows may still come. The next audit compares from there on.
    """
    groups = _groups(log)
    tails = tails_of(log) if log.keeps else {}
    ends = {history.h: tails[history.h].place if tails else _NOWHERE for history in log.histories}
    rows = _hashed(log, ends, groups)
    final, opened = _Found.kept(log), _Found()
    suspects = _differing_parts(rows, groups, ends, (final, opened)) if groups else {}
    if suspects:
        _compare(log, rows, _Places(_reach(groups), suspects, {}), (final, opened))
    result = Result()
    all_found = final.and_those(opened)
    result.add([_finding(log, h, each) for h, each in all_found.differing.items()])
    result.add([_absent(log, h, each) for h, each in all_found.absent.items()])
    result.add([*wrong_settings(log, groups.values())])
    foreign = _foreign(log)
    result.add(
        [wrong_origin(log.histories[h], each) for h, each in foreign.items() if each.foreign]
    )
    if log.keeps:
        names = [history.name for history in log.histories]
        told = [[names[h], each] for h, each in foreign.items()]
        result.kept = {**final.to_keep(log), "foreign": told}
    compared = sum(history.rows for histories in groups.values() for history in histories)
    result.summary = _summary(log, compared, all_found.pairs)
    return result


class _Reach(NamedTuple):
    """The histories of a group by number, ascending: their first and last places, their votes."""

    h: Ints
    first: Ints
    last: Ints
    votes: Ints


class _Places(NamedTuple):
    """The walk over the places of groups, in those parts of each in which its histories differ."""

    reach: Mapping[int, _Reach]
    suspects: Mapping[int, Sequence[int]]
    gaps: Gaps
    """Where rows are missing by their number: they are no places that a history lacks."""

    def compared(self, frames: Frames) -> Frames:
        """Yields rows of `_COMPARISON`: pairs of histories, and deviations."""
        for frame in whole(frames, _PLACE):
            for (group,), rows in frame.group_by("group", maintain_order=True):
                number = int(str(group))
                mine = rows.filter(pl.col("part").is_in(list(self.suspects[number])))
                if len(mine):
                    told = _Records.of(mine, self.reach[number])
                    yield from told.pairs()
                    yield from told.deviations(self.gaps)


class _Records(NamedTuple):
    """The records of histories at places: arrays of a row a history, a column a place."""

    reach: _Reach
    places: Ints
    is_open: Ints
    hashes: Ints
    present: _Flags
    here: _Flags
    """Whether a history reaches over a place."""

    @classmethod
    def of(cls, rows: pl.DataFrame, reach: _Reach) -> "_Records":
        # If a history has a place twice it is not in order, which the job `proof` reports.
        told = rows.group_by("place", "open", "h").agg(pl.col("hash").max())
        places, at = np.unique(told["place"].to_numpy(), return_inverse=True)
        own = np.searchsorted(reach.h, told["h"].to_numpy())
        is_open = np.zeros(len(places), np.int64)
        is_open[at] = told["open"].to_numpy()
        hashes = np.zeros((len(reach.h), len(places)), np.int64)
        hashes[own, at] = told["hash"].to_numpy()
        present = np.zeros(hashes.shape, np.bool_)
        present[own, at] = True
        here = (reach.first[:, None] <= places) & (places <= reach.last[:, None])
        return cls(reach, places, is_open, hashes, present, here)

    def pairs(self) -> Iterator[pl.DataFrame]:
        """Yields the number of places of each two histories that were compared, and that differ."""
        for one, other in combinations(range(len(self.reach.h)), 2):
            either = self.present[one] | self.present[other]
            both = self.here[one] & self.here[other] & either
            differs = both & ~self._alike(one, other)
            for is_open in np.unique(self.is_open).tolist():
                mine = self.is_open == is_open
                yield pl.DataFrame(
                    {
                        "h": int(self.reach.h[one]),
                        "other": int(self.reach.h[other]),
                        "open": is_open,
                        "places": int((both & mine).sum()),
                        "differing": int((differs & mine).sum()),
                    }
                )

    def deviations(self, gaps: Gaps) -> Iterator[pl.DataFrame]:
        """Yields the first place at which each history differs from most others, or lacks a row."""
        count = range(len(self.reach.h))
        shared = self.present & self.here
        votes = np.array(
            [
                sum(
                    self.reach.votes[its] * (shared[mine] & shared[its] & self._alike(mine, its))
                    for its in count
                )
                for mine in count
            ]
        )
        usual = votes.argmax(axis=0)
        judged = votes.max(axis=0) > 0
        expected = self.hashes[usual, np.arange(len(self.places))]
        for mine in count:
            fits = self.present[mine] & (self.hashes[mine] == expected)
            deviates = judged & self.here[mine] & ~fits
            lacks = deviates & ~self.present[mine]
            if lacks.any():
                h = pl.Series(np.full(len(self.places), self.reach.h[mine]))
                lacks &= ~in_gap(h, pl.Series(self.places), gaps).to_numpy()
            for is_absent, those in ((False, deviates & self.present[mine]), (True, lacks)):
                yield self._first(mine, usual, those, is_absent=is_absent)

    def _first(
        self, mine: int, usual: NDArray[np.intp], those: _Flags, *, is_absent: bool
    ) -> pl.DataFrame:
        at = np.flatnonzero(those)
        told = pl.DataFrame(
            {
                "open": self.is_open[at],
                "place": self.places[at],
                "model": self.reach.h[usual[at]],
            }
        )
        first = told.group_by("open", maintain_order=True).agg(
            pl.col("place", "model").first(), pl.len().cast(pl.Int64).alias("places")
        )
        h = pl.lit(int(self.reach.h[mine])).alias("h")
        return first.with_columns(h, is_absent=pl.lit(is_absent))

    def _alike(self, one: int, other: int) -> _Flags:
        both = self.present[one] & self.present[other]
        alike: _Flags = both & (self.hashes[one] == self.hashes[other])
        return alike


def _groups(log: Log) -> dict[int, list[History]]:
    """Returns the histories that are compared with each other, by the first one's number."""
    groups: dict[str, list[History]] = {}
    for history in log.histories:
        if history.source is not Source.BINARY_LOG and history.group_source is not None:
            groups.setdefault(history.group_source, []).append(history)
    return {mine[0].h: mine for mine in groups.values() if len(mine) > 1}


def _reach(groups: Mapping[int, Sequence[History]]) -> dict[int, _Reach]:
    return {
        number: _Reach(
            np.array([each.h for each in mine]),
            np.array([each.first_place for each in mine]),
            np.array([each.last_place for each in mine]),
            np.array([len(mine) if each.source is Source.TOTAL_ORDER else 1 for each in mine]),
        )
        for number, mine in groups.items()
    }


def _hashed(
    log: Log, ends: Mapping[int, int], groups: Mapping[int, Sequence[History]]
) -> DataFrame:
    """Returns the rows that are to be compared, with their hashes: those that no audit before has
    compared for good.
    """
    group_of = {history.h: number for number, mine in groups.items() for history in mine}
    begin = log.by_history(lambda history: history.before.whole_place if history.before else 0)
    compared = log.rows.where((F.col("kind") != RecordKind.START.value) & (F.col("place") >= begin))
    is_open = (F.col("place") >= log.by_history(lambda history: ends[history.h])).cast("long")
    return compared.select(
        "h",
        "place",
        is_open.alias("open"),
        log.by_history(lambda history: group_of.get(history.h, -1)).alias("group"),
        (F.shiftright("place", SEGMENT_BITS) * 2 + is_open).alias("part"),
        F.xxhash64(*[_hashable(name) for name in SHARED]).alias("hash"),
    )


def _hashable(name: str) -> Column:
    """Returns a column that hashes a value and whether it is null, as hashes ignore nulls."""
    return F.struct(F.col(name).isNull(), F.col(name))


class _Span(NamedTuple):
    """The places of a history, the last of which is open from `end` on."""

    h: int
    first: int
    last: int
    end: int

    def reaches(self, part: int) -> bool:
        """Returns whether the history reaches over a part."""
        segment, is_open = divmod(part, 2)
        inside = self.first >> SEGMENT_BITS <= segment <= self.last >> SEGMENT_BITS
        return inside and (self.last >= self.end if is_open else self.first < self.end)


class _Parts(NamedTuple):
    """The walk over the parts of groups, each with the digests of the histories that have rows
    there.
    """

    spans: Mapping[int, Sequence[_Span]]

    def compared(self, frames: Frames) -> Frames:
        """Yields rows of `_PARTS`."""
        names = ("group", "part", "h", "rows", "xor", "sum")
        alike: Counter[tuple[int, int, int]] = Counter()
        for frame in whole(frames, ("group", "part")):
            differing = []
            for (group, part), rows in groupby(frame.select(names).iter_rows(), itemgetter(0, 1)):
                known = {h: digest for _, _, h, *digest in rows}
                reaching = [span.h for span in self.spans[group] if span.reaches(part)]
                first, *others = [known.get(h) for h in reaching] or [None]
                if any(digest != first for digest in others):
                    differing.append((group, part))
                elif first:
                    for one, other in combinations(reaching, 2):
                        alike[one, other, part % 2] += first[0]
            yield pl.DataFrame(differing, ["group", "part"], orient="row")
        told = [(*pair, places) for pair, places in alike.items()]
        yield pl.DataFrame(told, ["h", "other", "open", "places"], orient="row")


def _differing_parts(
    rows: DataFrame,
    groups: Mapping[int, Sequence[History]],
    ends: Mapping[int, int],
    found: Sequence["_Found"],
) -> dict[int, list[int]]:
    """Returns by group the parts in which the histories that reach over them are not all equal, or
    in which one begins or ends; adds the places of the others to `found`.
    """
    digests = rows.where(F.col("group") >= 0).groupBy("group", "part", "h")
    made = digests.agg(
        F.count(F.lit(1)).alias("rows"),
        # Neither depends on the order of rows. Two equal rows in place of two other equal ones
        # leave the exclusive or as it is: the sum tells.
        F.bit_xor("hash").alias("xor"),
        F.sum(F.col("hash").bitwiseAND(_SUM_BITS)).alias("sum"),
    )
    spans = {
        number: [_Span(each.h, each.first_place, each.last_place, ends[number]) for each in mine]
        for number, mine in groups.items()
    }
    walked = walk(in_order(made, ("group", "part"), ["h"]), _Parts(spans).compared, _PARTS)
    told = pl.DataFrame(walked.toArrow(), schema=_PARTS)
    suspects: dict[int, list[int]] = {}
    for h, other, is_open, places, group, part in told.sort("group", "part").iter_rows():
        if part is None:
            found[is_open].count(h, other, places, 0)
        else:
            suspects.setdefault(group, []).append(part)
    return suspects


class _Deviation(NamedTuple):
    """The first place where a history differs from most others, a history that it differs from, the
    number of such places; and what was expected and found at the first.
    """

    place: int
    model: str
    places: int
    expected: str
    found: str


class _Compared(NamedTuple):
    """The number of places compared of two histories (both could have a record and one has), and
    the number of those at which they differ.
    """

    places: int = 0
    differing: int = 0


class _Found:
    """The counts of places compared of each two histories, and where each differs or lacks rows."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[int, int], _Compared] = {}
        self.differing: dict[int, _Deviation] = {}
        self.absent: dict[int, _Deviation] = {}

    @classmethod
    def kept(cls, log: Log) -> "_Found":
        """Returns the comparison that the audit before has kept."""
        comparison, kept = cls(), log.before("agree")
        if kept:
            pairs, differing, absent = (kept[name] for name in _KEPT)
            assert isinstance(pairs, list)
            assert isinstance(differing, list)
            assert isinstance(absent, list)
            for one, other, counts in pairs:
                # Histories that are new may stand between them, but not change their order.
                both = log.number_of(one), log.number_of(other)
                comparison.pairs[min(both), max(both)] = _Compared(*counts)
            comparison.differing = {
                log.number_of(name): _Deviation(*row) for name, row in differing
            }
            comparison.absent = {log.number_of(name): _Deviation(*row) for name, row in absent}
        return comparison

    def to_keep(self, log: Log) -> JsonObject:
        """Returns this as it is kept."""
        names = [history.name for history in log.histories]
        return {
            "pairs": [
                [names[one], names[other], each] for (one, other), each in self.pairs.items()
            ],
            "differing": [[names[h], each] for h, each in self.differing.items()],
            "absent": [[names[h], each] for h, each in self.absent.items()],
        }

    def count(self, one: int, other: int, places: int, differing: int) -> None:
        """Adds places of two histories that were compared."""
        before = self.pairs.get((one, other), _Compared())
        self.pairs[one, other] = _Compared(before.places + places, before.differing + differing)

    def and_those(self, later: "_Found") -> "_Found":
        """Returns both, of which the other one's places are later."""
        both = _Found()
        both.pairs = dict(self.pairs)
        for (one, other), each in later.pairs.items():
            both.count(one, other, *each)
        both.differing = _both(self.differing, later.differing)
        both.absent = _both(self.absent, later.absent)
        return both


def _both(
    earlier: Mapping[int, _Deviation], later: Mapping[int, _Deviation]
) -> dict[int, _Deviation]:
    both = {**later, **earlier}
    for h in earlier.keys() & later.keys():
        both[h] = earlier[h]._replace(places=earlier[h].places + later[h].places)
    return dict(sorted(both.items()))


def _compare(log: Log, rows: DataFrame, places: _Places, found: Sequence[_Found]) -> None:
    """Adds for each history its first place that differs from most others, and how many do; of
    places that are final to the first of `found`, of others to the second.

    Cost: a walk over the suspects, and two more if a history lacks places.
    """
    parts = sorted({part for mine in places.suspects.values() for part in mine})
    few = len(parts) <= _SUSPECTS_MAX
    inside = F.col("part").isin(parts) if few else F.col("part").between(parts[0], parts[-1])
    mine = rows.where(F.col("group").isin(list(places.suspects)) & inside)
    ordered = in_order(mine, _PLACE, ["h"])
    told = _walked(ordered, places)
    if told["is_absent"].any():
        told = _walked(ordered, places._replace(gaps=gaps_of(log)))
    pairs = told.filter(pl.col("other").is_not_null())
    for h, other, is_open, *counts in pairs.select(*_PAIR, "places", "differing").rows():
        found[is_open].count(h, other, *counts)
    deviations = (
        told.filter(pl.col("model").is_not_null())
        .sort("place")
        .group_by("h", "is_absent", "open", maintain_order=True)
        .agg(pl.col("place", "model").first(), pl.col("places").sum())
    )
    there = _rows_at(log, deviations.filter(~pl.col("is_absent")))
    for h, is_absent, is_open, place, model, count in deviations.rows():
        texts = ("", "") if is_absent else _difference(there, place, h, model)
        deviation = _Deviation(place, log.histories[model].observer, count, *texts)
        (found[is_open].absent if is_absent else found[is_open].differing)[h] = deviation


def _walked(rows: DataFrame, places: _Places) -> pl.DataFrame:
    return pl.DataFrame(walk(rows, places.compared, _COMPARISON).toArrow(), schema=_COMPARISON)


def _finding(log: Log, h: int, each: _Deviation) -> Finding:
    witness = (
        f"{each.model} has recorded this place otherwise; "
        f"they differ at {each.places} places from here on"
    )
    name = log.histories[h].name
    code = Code.MEMBERS_DISAGREE
    return Finding(code, *name, each.place, each.expected, each.found, witness)


def _foreign(log: Log) -> dict[int, Foreign]:
    kept = log.before("agree").get("foreign", [])
    assert isinstance(kept, list)
    return foreign_locals(log, {log.number_of(name): Foreign(*told) for name, told in kept})


def _absent(log: Log, h: int, each: _Deviation) -> Finding:
    witness = (
        f"{each.places} places are missing from here on, and no row is missing by its "
        "number: the member has never recorded them"
    )
    name, expected = log.histories[h].name, "a record, as others have here"
    return Finding(Code.RECORD_MISSING, *name, each.place, expected, "none", witness)


def _rows_at(log: Log, deviations: pl.DataFrame) -> dict[tuple[int, int], Row]:
    """Returns the rows of the histories that differ and of their models at the first places at
    which they do, by place and history.
    """
    if not len(deviations):
        return {}
    at = F.col("place").isin(deviations["place"].to_list())
    numbers = {*deviations["h"].to_list(), *deviations["model"].to_list()}
    rows = log.rows.where(at & F.col("h").isin(sorted(numbers)))
    return {(row["place"], row["h"]): row for row in rows.select("place", "h", *SHARED).collect()}


def _difference(
    rows: Mapping[tuple[int, int], Row], place: int, h: int, other: int
) -> tuple[str, str]:
    """Returns the columns in which a history differs from another one at a place: as the other one
    has them, and as it has.
    """
    actual, expected = rows[place, h], rows[place, other]
    names = [name for name in SHARED if actual[name] != expected[name]]
    return _told(expected, names), _told(actual, names)


def _told(row: Row, names: Sequence[str]) -> str:
    values: Mapping[str, object] = row.asDict()
    return ", ".join(f"{name}={values[name]}" for name in names)


def _summary(log: Log, compared: int, counted: Mapping[tuple[int, int], _Compared]) -> JsonObject:
    histories = [history for history in log.histories if history.source is not Source.BINARY_LOG]
    pairs = []
    for one, other in combinations(histories, 2):
        first = max(one.first_place, other.first_place)
        last = min(one.last_place, other.last_place)
        if one.group_source == other.group_source is not None:
            pairs.append(
                {
                    "one": one.observer,
                    "other": other.observer,
                    "histories": [one.history, other.history],
                    "first_place": first,
                    "last_place": max(last, first),
                    **counted.get((one.h, other.h), _Compared())._asdict(),
                }
            )
    return {
        "places": max((history.rows for history in histories), default=0),
        "compared": compared,
        "pairs": pairs,
    }
