"""The certified transactions that are not collected yet, by version.

The rule it keeps: versions are dense, and what is known of one is found by arithmetic. Rows of
plain integers, in segments of fixed size: a million transactions are a few hundred objects, and
forgetting the oldest moves nothing.
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence

from certifier.gtid import Gtid
from certifier.gtid_set import GtidSet

SEGMENT_TRANSACTIONS = 4096
_SHIFT = 12
_MASK = SEGMENT_TRANSACTIONS - 1
assert 1 << _SHIFT == SEGMENT_TRANSACTIONS

_SEQUENCE_NUMBER, _SNAPSHOT, _GTID_NUMBER, _POSITION = range(4)
_ITEMS_END, _LIVE_ITEMS, _GTID_SOURCE, _ORIGIN = range(4)
_FIELDS = 4
"""Fields of a row: the first line those of `Segment.large`, the second of `Segment.small`."""

_HEADER = struct.Struct("<III")
assert sys.byteorder == "little", "stored columns are little-endian"


class Segment:
    """Up to `SEGMENT_TRANSACTIONS` consecutive versions and their items.

    Each version has a row of 64-bit fields in `large` and one of 32-bit fields in `small`. Among
    them are where its items end, and how many of these nobody has written since: its live items.
    """

    __slots__ = ("items", "large", "live_items", "small")

    def __init__(self, empty_rows: int = 0) -> None:
        self.items = array("Q")
        self.large = array("Q", bytes(8 * _FIELDS * empty_rows))
        self.small = array("I", bytes(4 * _FIELDS * empty_rows))
        self.live_items = 0

    def __len__(self) -> int:
        return len(self.large) // _FIELDS

    def items_start(self, index: int) -> int:
        """Where the items of the version at `index` start."""
        return self.small[_FIELDS * (index - 1) + _ITEMS_END] if index else 0

    def items_of(self, index: int) -> "array[int]":
        """The items of the version at `index`."""
        return self.items[self.items_start(index) : self.small[_FIELDS * index + _ITEMS_END]]

    def live_between(self, first: int, last: int) -> int:
        """The live items of versions at `first` to `last`. Cost: O(1) for a whole segment."""
        if first == 0 and last == _MASK:
            return self.live_items
        return sum(self.small[_FIELDS * first + _LIVE_ITEMS : _FIELDS * (last + 1) : _FIELDS])

    def live_stamp_between(self, first: int, last: int) -> int:
        """The largest sequence number of versions at `first` to `last` that have live items."""
        live = self.small[_FIELDS * first + _LIVE_ITEMS : _FIELDS * (last + 1) : _FIELDS]
        stamps = self.large[_FIELDS * first + _SEQUENCE_NUMBER : _FIELDS * (last + 1) : _FIELDS]
        return max((stamp for count, stamp in zip(live, stamps, strict=True) if count), default=0)

    def dump(self, start: int) -> bytes:
        """The versions from index `start` on: lengths, items, rows."""
        first_item = self.items_start(start)
        items, rows = self.items[first_item:], len(self) - start
        large, small = self.large[_FIELDS * start :], self.small[_FIELDS * start :]
        lengths = _HEADER.pack(first_item, len(items), rows)
        return lengths + items.tobytes() + large.tobytes() + small.tobytes()

    def load(self, piece: bytes) -> int:
        """Adds the versions that `dump` gave, with all their items live; returns how many."""
        first_item, item_count, rows = _HEADER.unpack_from(piece)
        large_start = _HEADER.size + 8 * item_count
        small_start = large_start + 8 * _FIELDS * rows
        moved, start = len(self.items) - first_item, len(self)
        self.items.frombytes(piece[_HEADER.size : large_start])
        self.large.frombytes(piece[large_start:small_start])
        self.small.frombytes(piece[small_start:])
        for index in range(start, start + rows):
            self.small[_FIELDS * index + _ITEMS_END] += moved
            end = self.small[_FIELDS * index + _ITEMS_END]
            self.small[_FIELDS * index + _LIVE_ITEMS] = end - self.items_start(index)
        self.live_items += item_count
        return rows


class CertifiedWindow:
    """Versions `first_version` to `newest_version`; both grow."""

    __slots__ = (
        "_first_segment",
        "_names",
        "_numbers",
        "_segments",
        "elsewhere",
        "first_version",
        "newest_version",
        "snapshot_sets",
    )

    def __init__(self, newest_version: int = 0) -> None:
        self.first_version = newest_version + 1
        self.newest_version = newest_version
        self.snapshot_sets: dict[int, GtidSet] = {}
        self.elsewhere: dict[int, GtidSet] = {}
        self._first_segment = self.first_version >> _SHIFT
        self._segments = [Segment(empty_rows=self.first_version & _MASK)]
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}

    def append(
        self,
        items: Sequence[int],
        sequence_number: int,
        snapshot: int,
        gtid: tuple[str, int],
        origin: str,
        position: int,
    ) -> int:
        """Adds the next certified transaction (`sequence_number` 0: local) and returns its
        version.
        """
        version = self.newest_version = self.newest_version + 1
        segment = self._segments[-1]
        if len(segment.large) == _FIELDS * SEGMENT_TRANSACTIONS:
            segment = self._add_segment()
        source, number = gtid
        numbers = self._numbers
        if source not in numbers or origin not in numbers:
            self._add_names(source, origin)
        segment.items.extend(items)
        segment.live_items += len(items)
        segment.large.extend((sequence_number, snapshot, number, position))
        segment.small.extend((len(segment.items), len(items), numbers[source], numbers[origin]))
        return version

    def append_elsewhere(self, gtid_set: GtidSet, position: int) -> int:
        """Adds a version that stands for transactions executed elsewhere."""
        version = self.append((), 0, self.newest_version, ("", 0), "", position)
        self.elsewhere[version] = gtid_set
        return version

    def replace_writers(self, writers: Sequence[int]) -> None:
        """Takes one live item from each of the versions: a later one has written it."""
        for version in writers:
            segment = self._segment(version)
            segment.live_items -= 1
            segment.small[_FIELDS * (version & _MASK) + _LIVE_ITEMS] -= 1

    def live_items(self, last: int) -> int:
        """How many live items the versions up to `last` have. Cost: O(segments)."""
        spans = self._spans(self.first_version, last)
        return sum(segment.live_between(*span) for segment, *span in spans)

    def live_stamp(self, first: int, last: int) -> int:
        """The largest sequence number of versions `first` to `last` that have live items; 0 if
        none has. Cost: O(versions).
        """
        spans = self._spans(first, last)
        return max((segment.live_stamp_between(*span) for segment, *span in spans), default=0)

    def forget(self, last: int) -> None:
        """Forgets the versions up to `last`. Cost: O(1); `release` gives the memory back."""
        assert last <= self.newest_version
        self.first_version = max(self.first_version, last + 1)

    def release(self) -> bool:
        """Gives back the memory of one segment that is forgotten whole; False if there is none.

        Cost: O(SEGMENT_TRANSACTIONS).
        """
        if self._first_segment == self.first_version >> _SHIFT or len(self._segments) == 1:
            return False
        start = self._first_segment << _SHIFT
        for sets in (self.snapshot_sets, self.elsewhere):
            if sets:
                for version in range(start, start + SEGMENT_TRANSACTIONS):
                    sets.pop(version, None)
        del self._segments[0]
        self._first_segment += 1
        return True

    def sequence_number(self, version: int) -> int:
        """The stamp of a version; 0 for a local transaction."""
        return self._large(version, _SEQUENCE_NUMBER)

    def snapshot(self, version: int) -> int:
        """The version that a transaction read; a lower bound of it where `snapshot_sets` has the
        set itself.
        """
        return self._large(version, _SNAPSHOT)

    def position(self, version: int) -> int:
        """The place of a version's transaction in the total order."""
        return self._large(version, _POSITION)

    def gtid(self, version: int) -> Gtid:
        """The GTID of a version; not of one that was executed elsewhere."""
        assert version not in self.elsewhere
        return Gtid(self._name(version, _GTID_SOURCE), self._large(version, _GTID_NUMBER))

    def origin(self, version: int) -> str:
        """The member that sent a version's transaction."""
        return self._name(version, _ORIGIN)

    def items(self, version: int) -> "array[int]":
        """The write set of a version."""
        return self._segment(version).items_of(version & _MASK)

    def first_missing(self, missing: GtidSet, lag_max: int) -> int:
        """The smallest version with a GTID in `missing`; 0 where some lie before the window or
        `lag_max` back.

        Cost: O(versions since that one), walking back from the newest, at most `lag_max`.
        """
        remaining = len(missing)
        oldest = max(self.first_version, self.newest_version + 1 - lag_max)
        version = self.newest_version + 1
        while remaining and version > oldest:
            version -= 1
            if version in self.elsewhere:
                remaining -= len(self.elsewhere[version] & missing)
            else:
                remaining -= self.gtid(version) in missing
        return 0 if remaining else version

    def dump(self, first_version: int) -> list[tuple[int, bytes]]:
        """The versions from `first_version` on, as pieces of (first version, bytes), for `load`."""
        pieces = []
        while first_version <= self.newest_version:
            piece = self._segment(first_version).dump(first_version & _MASK)
            pieces.append((first_version, piece))
            first_version = ((first_version >> _SHIFT) + 1) << _SHIFT
        return pieces

    def load(self, first_version: int, piece: bytes) -> None:
        """Adds what `dump` gave; pieces come in the versions' order."""
        assert first_version == self.newest_version + 1
        segment = self._segments[-1]
        if len(segment) == SEGMENT_TRANSACTIONS:
            segment = self._add_segment()
        self.newest_version += segment.load(piece)

    @property
    def names(self) -> list[str]:
        """The names that rows refer to by number."""
        return self._names

    def load_names(self, names: Sequence[str]) -> None:
        """Restores the names; must come before any version is added."""
        self._names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}

    def check_invariants(self) -> None:
        """Every version held has a row, ends ascend, and live items are counted right."""
        assert self.first_version <= self.newest_version + 1
        assert self._first_segment <= self.first_version >> _SHIFT
        held = sum(map(len, self._segments))
        assert held == self.newest_version + 1 - (self._first_segment << _SHIFT)
        for segment in self._segments:
            assert len(segment) == len(segment.small) // _FIELDS <= SEGMENT_TRANSACTIONS
            ends = [0, *segment.small[_ITEMS_END::_FIELDS]]
            assert ends == sorted(ends)
            assert ends[-1] == len(segment.items)
            assert segment.live_items == sum(segment.small[_LIVE_ITEMS::_FIELDS])

    def _segment(self, version: int) -> Segment:
        assert self.first_version <= version <= self.newest_version, f"version {version} not held"
        return self._segments[(version >> _SHIFT) - self._first_segment]

    def _large(self, version: int, field: int) -> int:
        return self._segment(version).large[_FIELDS * (version & _MASK) + field]

    def _name(self, version: int, field: int) -> str:
        return self._names[self._segment(version).small[_FIELDS * (version & _MASK) + field]]

    def _spans(self, first: int, last: int) -> Iterator[tuple[Segment, int, int]]:
        """The segments with versions `first` to `last`, each with indexes of its first and last."""
        while first <= last:
            end = min(last, first | _MASK)
            yield self._segment(first), first & _MASK, end & _MASK
            first = end + 1

    def _add_segment(self) -> Segment:
        self._segments.append(Segment())
        return self._segments[-1]

    def _add_names(self, *names: str) -> None:
        for name in names:
            if name not in self._numbers:
                self._numbers[name] = len(self._names)
                self._names.append(name)
