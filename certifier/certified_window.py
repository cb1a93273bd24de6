"""The certified window: rows of the certified transactions that are not collected yet, by version.

Versions are dense, so a version's row is found by arithmetic. Rows are packed integers in segments
of 4,096 versions: a million transactions are a few hundred objects, and dropping the oldest segment
moves nothing.
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .gtid import Gtid
from .gtid_set import GtidSet

SEGMENT_TRANSACTIONS = 4096
_SHIFT = 12
_MASK = SEGMENT_TRANSACTIONS - 1
assert 1 << _SHIFT == SEGMENT_TRANSACTIONS

NAMES_MAX = 4_096
"""Largest number of sources of GTIDs and members, which rows refer to by 16 bits. Names are kept
for ever and are in every status of a member, so a client with GTIDs of its own must not add to them
without end.
"""

_BLOCK_SHIFT = 6
_BLOCKS = (SEGMENT_TRANSACTIONS, 1 << _BLOCK_SHIFT, 1)
"""Sizes of the blocks of versions whose GTIDs are compared together, each a 64th of the one
before.
"""

_ITEM_BYTES = 8
_ROW = struct.Struct("<QQQQIHH")
_ROW_BYTES = _ROW.size
_GTID_NUMBERS = slice(2, None, _ROW_BYTES // 8)
_GTID_SOURCES = slice(18, None, _ROW_BYTES // 2)
_ITEMS_END = slice(8, None, _ROW_BYTES // 4)
"""Columns of the rows: of numbers of 8, 2 and 4 bytes."""
_GTID, _GTID_START = struct.Struct("<Q12xH"), 16
"""Number and source of a row's GTID, and where they begin in it."""
_SEQUENCE_NUMBER = struct.Struct("<Q")
_HEADER = struct.Struct("<II")
assert sys.byteorder == "little", "stored items are little-endian"


class Row(NamedTuple):
    """The row of a version in a segment: 40 bytes, without its items."""

    sequence_number: int
    snapshot: int
    gtid_number: int
    position: int
    items_end: int
    gtid_source: int
    origin: int


class Segment:
    """Holds up to `SEGMENT_TRANSACTIONS` consecutive versions: packed rows, and their items."""

    __slots__ = ("items", "rows")

    def __init__(self, empty_rows: int = 0) -> None:
        self.items = array("Q")
        self.rows = bytearray(_ROW_BYTES * empty_rows)

    def __len__(self) -> int:
        return len(self.rows) // _ROW_BYTES

    def row(self, index: int) -> Row:
        """Returns the row of the version at `index`."""
        return Row(*_ROW.unpack_from(self.rows, _ROW_BYTES * index))

    def items_start(self, index: int) -> int:
        """Returns the index in `items` of the first item of the version at `index`."""
        return self.row(index - 1).items_end if index else 0

    def items_between(self, first: int, last: int) -> "array[int]":
        """Returns the items of the versions at the indexes `first` to `last`."""
        return self.items[self.items_start(first) : self.row(last).items_end]

    def dump(self, start: int) -> bytes:
        """Returns the versions from index `start` on: two lengths, their rows, their items."""
        items_start = self.items_start(start)
        rows = self.rows[_ROW_BYTES * start :]
        header = _HEADER.pack(items_start, len(rows))
        return header + bytes(rows) + self.items[items_start:].tobytes()

    def load(self, piece: bytes) -> None:
        """Adds the versions in a piece that `dump` returned."""
        items_start, rows_bytes = _HEADER.unpack_from(piece)
        # Ends count from the first item of the segment, and a piece from its middle does not bring
        # the items before it along.
        moved = len(self.items) - items_start
        rows_end = _HEADER.size + rows_bytes
        for row in map(Row._make, _ROW.iter_unpack(piece[_HEADER.size : rows_end])):
            self.rows += _ROW.pack(*row._replace(items_end=row.items_end + moved))
        self.items.frombytes(piece[rows_end:])


class CertifiedWindow:
    """Holds the versions `first_version` to `newest_version`; both only grow."""

    __slots__ = (
        "_executed",
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
        self._executed: dict[tuple[int, int], GtidSet] = {}
        self._first_segment = self.first_version >> _SHIFT
        # Rows of the versions before are there, empty, so that a version's low bits are its row's
        # index.
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
        segment = self._segments[-1] if version & _MASK else self._add_segment()
        source, number = gtid
        try:
            source_number, origin_number = self._numbers[source], self._numbers[origin]
        except KeyError:
            source_number, origin_number = self._number(source), self._number(origin)
        segment.items.fromlist(list(items))
        segment.rows += _ROW.pack(
            sequence_number,
            snapshot,
            number,
            position,
            len(segment.items),
            source_number,
            origin_number,
        )
        return version

    def extend(
        self,
        items: bytes,
        ends: Sequence[int],
        sequence_numbers: Sequence[int],
        snapshots: Sequence[int],
        gtids: tuple[str, Sequence[int]],
        origin: str,
        position: int,
    ) -> None:
        """Adds the next certified transactions, which have GTIDs of one source and consecutive
        positions: as `append` for each of them.

        Args:
            items: Those of all transactions, 8 bytes each; `ends`: where those of each end.
        """
        source, numbers = gtids
        source_number, origin_number = self._number(source), self._number(origin)
        start, first_item, count = 0, 0, len(numbers)
        while start < count:
            version = self.newest_version + 1
            segment = self._segments[-1] if version & _MASK else self._add_segment()
            stop = min(count, start + SEGMENT_TRANSACTIONS - (version & _MASK))
            part, before = slice(start, stop), len(segment.items) - first_item
            segment.items.frombytes(items[_ITEM_BYTES * first_item : _ITEM_BYTES * ends[stop - 1]])
            rows = map(
                _ROW.pack,
                sequence_numbers[part],
                snapshots[part],
                numbers[part],
                range(position + start, position + stop),
                [before + end for end in ends[part]],
                repeat(source_number),
                repeat(origin_number),
            )
            segment.rows += b"".join(rows)
            self.newest_version += stop - start
            start, first_item = stop, ends[stop - 1]

    def takes_gtids_of(self, source: str) -> bool:
        """Returns whether the source of a GTID is known, or there is room for one more."""
        return source in self._numbers or len(self._names) < NAMES_MAX

    def append_elsewhere(self, gtid_set: GtidSet, position: int) -> int:
        """Adds a version for transactions executed elsewhere and returns it."""
        version = self.append((), 0, self.newest_version, ("", 0), "", position)
        self.elsewhere[version] = gtid_set
        return version

    def drop_before(self, version: int) -> None:
        """Forgets all versions before `version`. Cost: O(versions forgotten)."""
        assert version <= self.newest_version + 1
        self.first_version = max(self.first_version, version)
        # Whole segments go, so that nothing moves; the last one stays, to be filled.
        while self._first_segment < self.first_version >> _SHIFT and len(self._segments) > 1:
            start = self._first_segment << _SHIFT
            for sets in filter(None, (self.snapshot_sets, self.elsewhere)):
                for old in range(start, start + SEGMENT_TRANSACTIONS):
                    sets.pop(old, None)
            for block in _BLOCKS[:-1] if self._executed else ():
                for old in range(start, start + SEGMENT_TRANSACTIONS, block):
                    self._executed.pop((old, block), None)
            del self._segments[0]
            self._first_segment += 1

    def sequence_number(self, version: int) -> int:
        """Returns the sequence number of a version; 0 for a local transaction."""
        rows = self._segment(version).rows
        sequence_number: int = _SEQUENCE_NUMBER.unpack_from(rows, _ROW_BYTES * (version & _MASK))[0]
        return sequence_number

    def row(self, version: int) -> Row:
        """Returns the row of a version: all that is held of it except its names and items."""
        return self._segment(version).row(version & _MASK)

    def gtid(self, version: int) -> Gtid:
        """Returns the GTID of a version, which must not be one executed elsewhere."""
        assert version not in self.elsewhere
        row = self.row(version)
        return Gtid(self._names[row.gtid_source], row.gtid_number)

    def executed(self, version: int) -> GtidSet:
        """Returns a version's GTIDs: that of its transaction, or those executed elsewhere."""
        if version in self.elsewhere:
            return self.elsewhere[version]
        return GtidSet.of(self.gtid(version))

    def snapshot(self, version: int) -> int:
        """Returns the version that a transaction read; where `snapshot_sets` has its snapshot as a
        GTID set, a lower bound of that version.
        """
        return self.row(version).snapshot

    def origin(self, version: int) -> str:
        """Returns the member that sent a version's transaction."""
        return self._names[self.row(version).origin]

    def position(self, version: int) -> int:
        """Returns the position of a version's transaction in the total order."""
        return self.row(version).position

    def items(self, version: int) -> "array[int]":
        """Returns the write set of a version."""
        return self._segment(version).items_between(version & _MASK, version & _MASK)

    def items_between(self, first: int, last: int) -> Iterator["array[int]"]:
        """Yields the write sets of the versions `first` to `last`, one segment's at a time."""
        while first <= last:
            end = min(last, first | _MASK)
            yield self._segment(first).items_between(first & _MASK, end & _MASK)
            first = end + 1

    def items_with_versions(
        self, first: int
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """Yields the items of the versions from `first` on, and the version of each item, one
        segment's at a time.
        """
        while first <= self.newest_version:
            segment, start = self._segment(first), first & _MASK
            columns = memoryview(segment.rows).cast("I")[_ITEMS_END]
            ends = np.array(columns, np.uint64)[start:]
            sizes = np.diff(ends, prepend=np.uint64(segment.items_start(start)))
            versions = np.arange(first, first + len(sizes), dtype=np.uint64)
            items = np.array(segment.items[segment.items_start(start) :], np.uint64)
            yield items, versions.repeat(sizes.astype(np.intp))
            first += len(sizes)

    def first_missing(self, missing: GtidSet, lag_max: int) -> int:
        """Returns the smallest version with a GTID in `missing`; 0 if some of `missing` lie before
        the window or more than `lag_max` versions back.

        Cost: one comparison of sets where the newest versions are missing, as in a snapshot that
        lags behind, 64 at most; else O(versions since that one / 4096) and some hundred. A block
        of versions is looked through when it is met for the first time.
        """
        remaining = missing.count()
        oldest = max(self.first_version, self.newest_version + 1 - lag_max)
        version, block = self.newest_version + 1 - remaining, 1
        if 0 < remaining <= _BLOCKS[1] and version >= oldest:
            # Versions beyond the segment are left out; then the sets differ, and the search
            # decides.
            if self._transactions_in(version, remaining) == missing:
                return version
        version = self.newest_version + 1
        while remaining and version > oldest:
            block = 1
            if not version % _BLOCKS[1]:
                # A block that reaches below `oldest` would count transactions that must not be
                # found.
                block = next(b for b in _BLOCKS if not version % b and version - b >= oldest)
            version -= block
            remaining -= self._count_in(version, block, missing)
        if remaining:
            return 0
        while missing and block > 1:  # All missing GTIDs are in this block or later.
            block >>= _BLOCK_SHIFT
            while not self._count_in(version, block, missing):
                version += block
        return version

    def dump(self, first_version: int) -> list[tuple[int, bytes]]:
        """Returns versions from `first_version` on as pieces (first version, bytes), for `load`."""
        pieces = []
        while first_version <= self.newest_version:
            piece = self._segment(first_version).dump(first_version & _MASK)
            pieces.append((first_version, piece))
            first_version = ((first_version >> _SHIFT) + 1) << _SHIFT
        return pieces

    def load(self, first_version: int, piece: bytes) -> None:
        """Adds a piece that `dump` returned; pieces come in the order of their versions."""
        assert first_version == self.newest_version + 1
        segment = self._segments[-1] if first_version & _MASK else self._add_segment()
        segment.load(piece)
        self.newest_version = first_version - (first_version & _MASK) + len(segment) - 1

    @property
    def names(self) -> list[str]:
        """Names that rows refer to by number."""
        return self._names

    def load_names(self, names: Sequence[str]) -> None:
        """Restores the names; must come before any version is added."""
        self._names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}

    def check_invariants(self) -> None:
        """Asserts that every version held has a row and that the ends of the items ascend."""
        assert self.first_version <= self.newest_version + 1
        assert self._first_segment <= self.first_version >> _SHIFT
        held = sum(map(len, self._segments))
        assert held == self.newest_version + 1 - (self._first_segment << _SHIFT)
        for segment in self._segments:
            assert len(segment) <= SEGMENT_TRANSACTIONS
            ends = [segment.row(index).items_end for index in range(len(segment))]
            assert ends == sorted(ends)
            assert ends[-1:] in ([], [len(segment.items)])

    def _count_in(self, version: int, block: int, gtids: GtidSet) -> int:
        """Returns the number of `gtids` that the `block` versions from `version` on have."""
        if block == 1 and version not in self.elsewhere:
            rows = self._segment(version).rows
            number, source = _GTID.unpack_from(rows, _ROW_BYTES * (version & _MASK) + _GTID_START)
            return gtids.contains_number(self._names[source], number)
        return (self._executed_in(version, block) & gtids).count()

    def _executed_in(self, version: int, block: int) -> GtidSet:
        """Returns the GTIDs of `block` versions from `version` on, cached if more than one."""
        if block == 1:
            return self.executed(version)
        if (version, block) not in self._executed:
            if block == SEGMENT_TRANSACTIONS:
                made, part = GtidSet(), block >> _BLOCK_SHIFT
                for first in range(version, version + block, part):
                    made.update(self._executed_in(first, part))
            else:
                made = self._transactions_in(version, block)
                for other in range(version, version + block) if self.elsewhere else ():
                    # Of a version without such a set, itself: that adds nothing.
                    made.update(self.elsewhere.get(other, made))
            # Blocks are asked for from the newest version downwards, so each is full: what it has
            # never changes.
            self._executed[version, block] = made
        return self._executed[version, block]

    def _transactions_in(self, version: int, count: int) -> GtidSet:
        """Returns the GTIDs of `count` versions from `version` on, without those executed
        elsewhere, and none beyond the segment of `version`.
        """
        made = GtidSet()
        for source, numbers in self._numbers_in(version, count).items():
            made.add_numbers(source, numbers)
        return made

    def _numbers_in(self, version: int, count: int) -> dict[str, list[int]]:
        """Returns the numbers of the versions' GTIDs by source, read in columns: rows are slow."""
        begin = _ROW_BYTES * (version & _MASK)
        rows = self._segment(version).rows[begin : begin + _ROW_BYTES * count]
        numbers = memoryview(rows).cast("Q")[_GTID_NUMBERS].tolist()
        sources = memoryview(rows).cast("H")[_GTID_SOURCES].tolist()
        # Nearly always one source has all of them, and its list is the column itself.
        found = {self._names[source]: numbers for source in set(sources)}
        if len(found) > 1:
            found = {source: [] for source in found}
            for number, source in zip(numbers, sources, strict=True):
                found[self._names[source]].append(number)
        found.pop("", None)  # From versions executed elsewhere.
        return found

    def _segment(self, version: int) -> Segment:
        assert self.first_version <= version <= self.newest_version, f"version {version} not held"
        return self._segments[(version >> _SHIFT) - self._first_segment]

    def _add_segment(self) -> Segment:
        """Adds a last segment and returns it; it replaces the last one if that is empty."""
        segment = Segment()
        # A window that begins with a segment's first version has made that segment already.
        self._segments[len(self._segments) - (not self._segments[-1].rows) :] = [segment]
        return segment

    def _number(self, name: str) -> int:
        """Returns the number of a name, and gives the name a new one if it has none."""
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self._numbers[name]
