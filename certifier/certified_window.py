"""The certified transactions that are not collected yet, by version.

The rule it keeps: versions are dense, and what is known of one is found by arithmetic. Rows of
plain integers, in segments of fixed size: a million transactions are a few hundred objects, and
forgetting the oldest moves nothing.
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from certifier.gtid import Gtid
from certifier.gtid_set import GtidSet

SEGMENT_TRANSACTIONS = 4096
_SHIFT = 12
_MASK = SEGMENT_TRANSACTIONS - 1
assert 1 << _SHIFT == SEGMENT_TRANSACTIONS

NAMES_MAX = 4_096
"""Sources of GTIDs and members that rows refer to, by 16 bits. They are kept for ever, and each
status of a member has them: a client that brings GTIDs of its own may not add to them without end.
"""

_BLOCK_SHIFT = 6
_BLOCKS = (SEGMENT_TRANSACTIONS, 1 << _BLOCK_SHIFT, 1)
"""Versions whose GTIDs are looked at together, each a 64th of the one before."""

_ROW = struct.Struct("<QQQQIHH")
_ROW_BYTES = _ROW.size
_GTID_NUMBERS = slice(2, None, _ROW_BYTES // 8)
_GTID_SOURCES = slice(18, None, _ROW_BYTES // 2)
"""Columns of rows: of numbers of 8 bytes, and of numbers of 2 bytes."""
_SEQUENCE_NUMBER = struct.Struct("<Q")
_HEADER = struct.Struct("<II")
assert sys.byteorder == "little", "stored items are little-endian"


class Row(NamedTuple):
    """What a segment holds of a version: 40 bytes, beside its items."""

    sequence_number: int
    snapshot: int
    gtid_number: int
    position: int
    items_end: int
    gtid_source: int
    origin: int


class Segment:
    """Up to `SEGMENT_TRANSACTIONS` consecutive versions: packed rows, and the items of all."""

    __slots__ = ("items", "rows")

    def __init__(self, empty_rows: int = 0) -> None:
        self.items = array("Q")
        self.rows = bytearray(_ROW_BYTES * empty_rows)

    def __len__(self) -> int:
        return len(self.rows) // _ROW_BYTES

    def row(self, index: int) -> Row:
        """The row of the version at `index`."""
        return Row(*_ROW.unpack_from(self.rows, _ROW_BYTES * index))

    def items_start(self, index: int) -> int:
        """Where the items of the version at `index` start."""
        return self.row(index - 1).items_end if index else 0

    def items_between(self, first: int, last: int) -> "array[int]":
        """The items of the versions at `first` to `last`."""
        return self.items[self.items_start(first) : self.row(last).items_end]

    def dump(self, start: int) -> bytes:
        """The versions from index `start` on: two lengths, their rows, their items."""
        items_start = self.items_start(start)
        rows = self.rows[_ROW_BYTES * start :]
        header = _HEADER.pack(items_start, len(rows))
        return header + bytes(rows) + self.items[items_start:].tobytes()

    def load(self, piece: bytes) -> None:
        """Adds the versions that `dump` gave."""
        items_start, rows_bytes = _HEADER.unpack_from(piece)
        moved = len(self.items) - items_start
        rows_end = _HEADER.size + rows_bytes
        for row in map(Row._make, _ROW.iter_unpack(piece[_HEADER.size : rows_end])):
            self.rows += _ROW.pack(*row._replace(items_end=row.items_end + moved))
        self.items.frombytes(piece[rows_end:])


class CertifiedWindow:
    """Versions `first_version` to `newest_version`; both grow."""

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

    def takes_gtids_of(self, source: str) -> bool:
        """Whether the source of a GTID is known, or another one may become so."""
        return source in self._numbers or len(self._names) < NAMES_MAX

    def append_elsewhere(self, gtid_set: GtidSet, position: int) -> int:
        """Adds a version that stands for transactions executed elsewhere."""
        version = self.append((), 0, self.newest_version, ("", 0), "", position)
        self.elsewhere[version] = gtid_set
        return version

    def drop_before(self, version: int) -> None:
        """Forgets all versions before `version`. Cost: O(versions forgotten)."""
        assert version <= self.newest_version + 1
        self.first_version = max(self.first_version, version)
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
        """The stamp of a version; 0 for a local transaction."""
        rows = self._segment(version).rows
        sequence_number: int = _SEQUENCE_NUMBER.unpack_from(rows, _ROW_BYTES * (version & _MASK))[0]
        return sequence_number

    def row(self, version: int) -> Row:
        """All that is held of a version but its names and items."""
        return self._segment(version).row(version & _MASK)

    def gtid(self, version: int) -> Gtid:
        """The GTID of a version; not of one that was executed elsewhere."""
        assert version not in self.elsewhere
        row = self.row(version)
        return Gtid(self._names[row.gtid_source], row.gtid_number)

    def executed(self, version: int) -> GtidSet:
        """The GTIDs that a version stands for: its transaction's, or those executed elsewhere."""
        if version in self.elsewhere:
            return self.elsewhere[version]
        return GtidSet.of(self.gtid(version))

    def snapshot(self, version: int) -> int:
        """The version that a transaction read; a lower bound of it where `snapshot_sets` has the
        set itself.
        """
        return self.row(version).snapshot

    def origin(self, version: int) -> str:
        """The member that sent a version's transaction."""
        return self._names[self.row(version).origin]

    def position(self, version: int) -> int:
        """The place of a version's transaction in the total order."""
        return self.row(version).position

    def items(self, version: int) -> "array[int]":
        """The write set of a version."""
        return self._segment(version).items_between(version & _MASK, version & _MASK)

    def items_between(self, first: int, last: int) -> Iterator["array[int]"]:
        """The write sets of the versions `first` to `last`, one segment's at a time."""
        while first <= last:
            end = min(last, first | _MASK)
            yield self._segment(first).items_between(first & _MASK, end & _MASK)
            first = end + 1

    def first_missing(self, missing: GtidSet, lag_max: int) -> int:
        """The smallest version with a GTID in `missing`; 0 where some lie before the window or
        `lag_max` back.

        Cost: O(versions since that one / 4096) comparisons of sets, and some hundred; a block of
        versions is looked through when it is met for the first time.
        """
        remaining = missing.count()
        oldest = max(self.first_version, self.newest_version + 1 - lag_max)
        version, block = self.newest_version + 1, 1
        while remaining and version > oldest:
            block = next(b for b in _BLOCKS if not version % b and version - b >= oldest)
            version -= block
            remaining -= (self._executed_in(version, block) & missing).count()
        if remaining:
            return 0
        while missing and block > 1:  # All that is missing is in this block or behind it.
            block >>= _BLOCK_SHIFT
            while not self._executed_in(version, block) & missing:
                version += block
        return version

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
        segment = self._segments[-1] if first_version & _MASK else self._add_segment()
        segment.load(piece)
        self.newest_version = first_version - (first_version & _MASK) + len(segment) - 1

    @property
    def names(self) -> list[str]:
        """The names that rows refer to by number."""
        return self._names

    def load_names(self, names: Sequence[str]) -> None:
        """Restores the names; must come before any version is added."""
        self._names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}

    def check_invariants(self) -> None:
        """Every version held has a row, and the items' ends ascend."""
        assert self.first_version <= self.newest_version + 1
        assert self._first_segment <= self.first_version >> _SHIFT
        held = sum(map(len, self._segments))
        assert held == self.newest_version + 1 - (self._first_segment << _SHIFT)
        for segment in self._segments:
            assert len(segment) <= SEGMENT_TRANSACTIONS
            ends = [segment.row(index).items_end for index in range(len(segment))]
            assert ends == sorted(ends)
            assert ends[-1:] in ([], [len(segment.items)])

    def _executed_in(self, version: int, block: int) -> GtidSet:
        """What a block of versions stands for, from `version` on; of more than one it is kept."""
        if block == 1:
            return self.executed(version)
        if (version, block) not in self._executed:
            made = GtidSet()
            if block == SEGMENT_TRANSACTIONS:
                part = block >> _BLOCK_SHIFT
                for first in range(version, version + block, part):
                    made.update(self._executed_in(first, part))
            else:
                for source, numbers in self._numbers_in(version, block).items():
                    made.add_numbers(source, numbers)
                for other in range(version, version + block) if self.elsewhere else ():
                    made.update(self.elsewhere.get(other, made))
            self._executed[version, block] = made
        return self._executed[version, block]

    def _numbers_in(self, version: int, block: int) -> dict[str, list[int]]:
        """The numbers of the versions' own GTIDs, by source; read in columns, as rows are slow."""
        begin = _ROW_BYTES * (version & _MASK)
        rows = self._segment(version).rows[begin : begin + _ROW_BYTES * block]
        numbers = memoryview(rows).cast("Q")[_GTID_NUMBERS].tolist()
        sources = memoryview(rows).cast("H")[_GTID_SOURCES].tolist()
        found = {self._names[source]: numbers for source in set(sources)}
        if len(found) > 1:
            found = {source: [] for source in found}
            for number, source in zip(numbers, sources, strict=True):
                found[self._names[source]].append(number)
        found.pop("", None)  # Of what was executed elsewhere.
        return found

    def _segment(self, version: int) -> Segment:
        assert self.first_version <= version <= self.newest_version, f"version {version} not held"
        return self._segments[(version >> _SHIFT) - self._first_segment]

    def _add_segment(self) -> Segment:
        """A new last segment; an empty one makes way for it."""
        segment = Segment()
        self._segments[len(self._segments) - (not self._segments[-1].rows) :] = [segment]
        return segment

    def _number(self, name: str) -> int:
        """The number of a name, a new one where it has none."""
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self._numbers[name]
