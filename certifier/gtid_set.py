"""Sets of GTIDs as sorted intervals, the form in which MySQL writes and sends them.

For each source the set keeps one flat list of bounds, `[first, stop, first, stop, ...]`, where
`stop` is one past the last number of an interval. The rule: the bounds are strictly increasing, so
that intervals neither overlap nor touch, every set has exactly one form, and equal sets have equal
lists. The parity of a bisection then answers most questions: an odd index lies inside an interval,
an even one between two.

Source: MySQL 8.4 Reference Manual, 19.1.3.1 "GTID Sets"; tags of one UUID are joined as the server
prints them (MySQL bug 116789), not as that page shows.
Differs: a set is printed on one line, where the server breaks it after each comma. An empty part
between commas and an interval that ends before it starts are errors here and nothing there, because
a text cut short would pass for a smaller set.
"""

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Self

from .errors import InvalidGtid, InvalidGtidSet
from .gtid import (
    NUMBER_MAX,
    Gtid,
    parse_number,
    parse_origin,
    parse_source,
    parse_tag,
)

NUMBER_STOP = NUMBER_MAX + 1
"""One past the largest number of a GTID."""
BOUND_BYTES_MAX = 20
"""Digits of a number, and what separates it from the next one."""


class GtidSet:
    """A set of GTIDs that grows; not hashable, because it changes.

    Sources are in canonical spelling (see `certifier.gtid`) wherever they are arguments.

    >>> executed = GtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3:7")
    >>> executed.add(Gtid("3e11fa47-71ca-11e1-9e33-c80aa9429562", 4))
    >>> str(executed), len(executed)
    ('3e11fa47-71ca-11e1-9e33-c80aa9429562:1-4:7', 5)
    """

    __slots__ = ("_bounds",)

    def __init__(self) -> None:
        self._bounds: dict[str, list[int]] = {}

    @classmethod
    def of(cls, *gtids: Gtid) -> Self:
        """Returns the set of these GTIDs."""
        made = cls()
        for gtid in gtids:
            made.add(gtid)
        return made

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the set that a text in MySQL's syntax describes.

        Case, white space, the order of intervals and their overlaps do not matter; a tag holds for
        the intervals after it, up to the next tag or comma. An empty text is the empty set.

        Raises:
            InvalidGtidSet: with the part that was not understood.
        Cost: O(n log n) in the text's length, whatever the order; O(n) where intervals ascend.

        >>> uuid = "3E11FA47-71CA-11E1-9E33-C80AA9429562"
        >>> str(GtidSet.parse(f"{uuid}:backup:1-2, {uuid}:5-7:1-6"))
        '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-7:backup:1-2'
        """
        found: dict[str, tuple[list[int], list[int]]] = {}
        for uuid_set in text.split(",") if text.strip() else ():
            try:
                _parse_uuid_set(found, uuid_set)
            except InvalidGtid as error:
                raise InvalidGtidSet(text=text, part=error.text, expected=error.expected) from None
        parsed = cls()
        for source, (firsts, stops) in found.items():
            parsed._put(source, _united(firsts, stops))
        return parsed

    def copy(self) -> Self:
        """Returns an equal set that changes on its own. Cost: O(intervals)."""
        copied = type(self)()
        copied._bounds = {source: bounds.copy() for source, bounds in self._bounds.items()}
        return copied

    def add(self, gtid: Gtid) -> None:
        """Adds one GTID to the set. Cost: as `add_number`."""
        self.add_number(gtid.source, gtid.number)

    def add_number(self, source: str, number: int) -> None:
        """Adds the GTID `source`:`number` to the set.

        Cost: O(1) where it prolongs its source's last interval, O(log intervals) where it prolongs
        another without closing a gap, else as `add_interval`.
        """
        assert 0 < number < NUMBER_STOP, f"number {number} of {source}"
        bounds = self._bounds.get(source)
        if bounds is None:
            self._bounds[source] = [number, number + 1]
            return
        if bounds[-1] == number:
            bounds[-1] = number + 1
            return
        index = bisect_right(bounds, number)
        if index & 1:
            return
        # An interval ends right before it, and no other begins right after it. There is a next
        # bound, as the last one was looked at above.
        if index and bounds[index - 1] == number and bounds[index] != number + 1:
            bounds[index - 1] = number + 1
            return
        _include(bounds, number, number + 1)

    def add_interval(self, source: str, first: int, last: int) -> None:
        """Adds the numbers `first` to `last`, both included, of a source to the set.

        Cost: O(log intervals) to find the index; the list's tail moves (one memory copy) if their
        count changes.
        """
        assert 0 < first <= last < NUMBER_STOP, f"interval {first}-{last} of {source}"
        _include(self._bounds.setdefault(source, []), first, last + 1)

    def add_numbers(self, source: str, numbers: list[int]) -> None:
        """Adds numbers of a source to the set, in any order. Cost: as `update`."""
        mine = self._bounds.get(source, [])
        stops = [number + 1 for number in numbers]
        self._put(source, _united(mine[::2] + numbers, mine[1::2] + stops))

    def update(self, other: "GtidSet") -> None:
        """Adds all GTIDs of another set to this one. Cost: O(intervals of both)."""
        for source, bounds in other._bounds.items():
            mine = self._bounds.get(source, [])
            self._bounds[source] = _united(mine[::2] + bounds[::2], mine[1::2] + bounds[1::2])

    def union(self, other: "GtidSet") -> Self:
        """Returns the GTIDs in either set. Cost: a `copy` and an `update`."""
        united = self.copy()
        united.update(other)
        return united

    def intersection(self, other: "GtidSet") -> Self:
        """Returns the GTIDs in both sets. Cost: O(intervals of both)."""
        common = type(self)()
        for source, bounds in self._bounds.items():
            common._put(source, _intersection(bounds, other._bounds.get(source, [])))
        return common

    def difference(self, other: "GtidSet") -> Self:
        """Returns the GTIDs in this set and not in the other. Cost: O(intervals of both)."""
        remaining = type(self)()
        for source, bounds in self._bounds.items():
            removed = other._bounds.get(source, [])
            if bounds != removed:
                # The complement: what lies between the removed intervals, and around them.
                outside = [0, *removed, NUMBER_STOP + 1]
                remaining._put(source, _intersection(bounds, outside))
        return remaining

    __or__ = union
    __and__ = intersection
    __sub__ = difference

    def issubset(self, other: "GtidSet") -> bool:
        """Returns whether every GTID of this set is in the other.

        Cost: O(1) for the same object; for each source O(1) if the other set has one interval of
        it, else O(a log b) for a intervals here and b there.
        """
        if self is other:
            return True
        for source, bounds in self._bounds.items():
            outer = other._bounds.get(source)
            if outer is None or not _covers(outer, bounds):
                return False
        return True

    __le__ = issubset

    def __contains__(self, gtid: Gtid) -> bool:
        """Returns whether a GTID is in the set. Cost: O(log intervals)."""
        return self.contains_number(gtid.source, gtid.number)

    def contains_number(self, source: str, number: int) -> bool:
        """Returns whether a source's number is in the set. Cost: O(log intervals)."""
        return bool(bisect_right(self._bounds.get(source, ()), number) & 1)

    def __eq__(self, other: object) -> bool:
        return self._bounds == other._bounds if isinstance(other, GtidSet) else NotImplemented

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def count(self) -> int:
        """Returns the number of GTIDs, not of intervals. Cost: O(intervals)."""
        return sum(sum(bounds[1::2]) - sum(bounds[::2]) for bounds in self._bounds.values())

    def __len__(self) -> int:
        """Returns `count()`.

        Raises:
            OverflowError: if there are 2^63 or more, which takes two sources.
        """
        return self.count()

    def __str__(self) -> str:
        """Returns the canonical text: UUIDs sorted, in each the untagged intervals, then tags."""
        uuid_sets: list[str] = []
        uuid_before = ""
        for source in sorted(self._bounds):
            uuid, _, tag = source.partition(":")
            intervals = ":".join(_interval_text(*pair) for pair in self.intervals(source))
            if uuid == uuid_before:
                uuid_sets[-1] += f":{tag}:{intervals}"
            else:
                uuid_sets.append(f"{source}:{intervals}")
            uuid_before = uuid
        return ",".join(uuid_sets)

    def __repr__(self) -> str:
        return f"GtidSet.parse({str(self)!r})"

    def text_bytes_max(self) -> int:
        """Returns an upper bound of the set's length as text, in bytes. Cost: O(sources)."""
        return sum(
            len(source) + 2 + BOUND_BYTES_MAX * len(bounds)
            for source, bounds in self._bounds.items()
        )

    def sources(self) -> list[str]:
        """Returns the sources that have a GTID in the set, sorted."""
        return sorted(self._bounds)

    def intervals(self, source: str) -> list[tuple[int, int]]:
        """Returns a source's intervals as (first, last), both included, ascending."""
        bounds = self._bounds.get(source, [])
        return [(bounds[i], bounds[i + 1] - 1) for i in range(0, len(bounds), 2)]

    def next_free(self, source: str, start: int) -> int:
        """Returns a source's smallest number from `start` on that is not in the set.

        It is `NUMBER_STOP` if there is none. Cost: O(log intervals).
        """
        assert 0 < start <= NUMBER_STOP, f"start {start}"
        bounds = self._bounds.get(source, [])
        index = bisect_right(bounds, start)
        return bounds[index] if index & 1 else start

    def first_used(self, source: str, start: int, stop: int) -> int | None:
        """Returns a source's smallest number in [start, stop) that is in the set, if there is one.

        Cost: O(log intervals).
        """
        assert 0 < start <= stop, f"from {start} to {stop}"
        bounds = self._bounds.get(source, [])
        index = bisect_right(bounds, start)
        if index & 1:
            used = start
        elif index < len(bounds):
            used = bounds[index]
        else:
            return None
        return used if used < stop else None

    def check_invariants(self) -> None:
        """Asserts that each source is canonical and its bounds ascend. Cost: O(intervals)."""
        for source, bounds in self._bounds.items():
            assert parse_source(source) == source, f"source {source} is not canonical"
            assert bounds, f"{source} has no interval"
            assert len(bounds) % 2 == 0, f"{source} has an open interval"
            assert bounds[0] > 0, f"{source} starts at {bounds[0]}"
            assert bounds[-1] <= NUMBER_STOP, f"{source} stops at {bounds[-1]}"
            assert all(a < b for a, b in pairwise(bounds)), f"{source} is not ascending: {bounds}"

    def _put(self, source: str, bounds: list[int]) -> None:
        """Stores a source's list of bounds; a source without bounds is left out."""
        if bounds:
            self._bounds[source] = bounds


def _parse_uuid_set(into: dict[str, tuple[list[int], list[int]]], text: str) -> None:
    """Adds the intervals of one `uuid[:tag]:interval[:interval]...[:tag:interval...]` to `into`:
    for each source the first numbers and the stops, in the text's order.
    """
    uuid_text, *parts = text.split(":")
    uuid = source = parse_origin(uuid_text)
    firsts: list[int] = []
    stops: list[int] = []
    for part in parts:
        if part[:1].isdigit() or part.strip()[:1].isdigit():
            first_text, separator, last_text = part.partition("-")
            first = parse_number(first_text)
            last = parse_number(last_text) if separator else first
            if last < first:
                raise InvalidGtid(
                    text=part, expected="an interval that does not end before it starts"
                )
            firsts.append(first)
            stops.append(last + 1)
        # A tag right behind a tag is left with no interval, and refused below.
        elif source == uuid or firsts:
            _add_intervals(into, source, firsts, stops)
            source = f"{uuid}:{parse_tag(part)}"
            firsts, stops = [], []
        else:
            break
    if not firsts:
        raise InvalidGtid(text=text, expected="an interval such as :1-5 after a UUID or tag")
    _add_intervals(into, source, firsts, stops)


def _add_intervals(
    into: dict[str, tuple[list[int], list[int]]], source: str, firsts: list[int], stops: list[int]
) -> None:
    known = into.setdefault(source, ([], []))
    known[0].extend(firsts)
    known[1].extend(stops)


def _interval_text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _include(bounds: list[int], first: int, stop: int) -> None:
    """Adds [first, stop) to `bounds`, in place of the bounds that it covers or touches."""
    low = bisect_left(bounds, first)
    high = bisect_right(bounds, stop)
    # An odd index lies inside an interval, or at its end: that one is prolonged, and keeps its
    # bound.
    replacement = [] if low & 1 else [first]
    if not high & 1:
        replacement.append(stop)
    bounds[low:high] = replacement


def _united(firsts: list[int], stops: list[int]) -> list[int]:
    """Returns the bounds of all intervals [first, stop), which may overlap and come in any order.

    Between two of them is a gap where as many have stopped as have begun, and the next one begins
    later. Cost: O(n log n); O(n) for few ascending runs, as Python's sort merges these.
    """
    firsts.sort()
    stops.sort()
    bounds = firsts[:1]
    for index, first in enumerate(firsts[1:]):
        if stops[index] < first:
            bounds += (stops[index], first)
    return bounds + stops[-1:]


def _intersection(left: list[int], right: list[int]) -> list[int]:
    """Returns the bounds of the intervals that lie in both lists."""
    common: list[int] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first = max(left[i], right[j])
        stop = min(left[i + 1], right[j + 1])
        if first < stop:
            common += (first, stop)
        if left[i + 1] == stop:
            i += 2
        else:
            j += 2
    return common


def _covers(outer: list[int], inner: list[int]) -> bool:
    """Returns whether every interval of `inner` lies in one of `outer`."""
    if len(outer) == 2:
        return outer[0] <= inner[0] and inner[-1] <= outer[1]
    index = 0
    for i in range(0, len(inner), 2):
        index = bisect_right(outer, inner[i], index)
        if not index & 1 or outer[index] < inner[i + 1]:
            return False
    return True
