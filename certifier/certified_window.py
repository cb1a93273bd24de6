"""The certified transactions whose items may still be in the certification info, by version.

The rule it keeps: versions are dense, and what is known of one is found by arithmetic. Columns of
plain integers, in segments of fixed size: a million transactions are a few thousand objects, and
forgetting the oldest moves nothing.
"""

import struct
from array import array
from collections.abc import Sequence

from certifier.gtid import Gtid
from certifier.gtid_set import GtidSet

SEGMENT_TRANSACTIONS = 4096
_SHIFT = 12
_MASK = SEGMENT_TRANSACTIONS - 1
assert 1 << _SHIFT == SEGMENT_TRANSACTIONS

COLUMNS = (
    ("items", "Q"),
    ("item_ends", "I"),
    ("sequence_numbers", "Q"),
    ("snapshots", "Q"),
    ("gtid_sources", "H"),
    ("gtid_numbers", "Q"),
    ("origins", "H"),
    ("positions", "Q"),
)
"""Names and array types. `items` holds the items of all transactions; `item_ends` says where
each one's end.
"""


class Segment:
    """Columns for up to `SEGMENT_TRANSACTIONS` consecutive versions."""

    __slots__ = tuple(name for name, _ in COLUMNS)

    items: "array[int]"
    item_ends: "array[int]"
    sequence_numbers: "array[int]"
    snapshots: "array[int]"
    gtid_sources: "array[int]"
    gtid_numbers: "array[int]"
    origins: "array[int]"
    positions: "array[int]"

    def __init__(self) -> None:
        for name, typecode in COLUMNS:
            setattr(self, name, array(typecode))

    def items_of(self, index: int) -> "array[int]":
        """The items of the transaction at `index` within the segment."""
        start = self.item_ends[index - 1] if index else 0
        return self.items[start : self.item_ends[index]]

    def dump(self, start: int) -> bytes:
        """The transactions from index `start` on: for each column its length in bytes and its
        bytes, little-endian.
        """
        first_item = self.item_ends[start - 1] if start else 0
        columns = [
            getattr(self, name)[first_item if name == "items" else start :].tobytes()
            for name, _ in COLUMNS
        ]
        lengths = struct.pack(f"<I{len(columns)}I", first_item, *map(len, columns))
        return lengths + b"".join(columns)

    def load(self, piece: bytes) -> None:
        """Adds the transactions that `dump` gave."""
        header = struct.Struct(f"<I{len(COLUMNS)}I")
        first_item, *lengths = header.unpack_from(piece)
        moved = len(self.items) - first_item
        offset = header.size
        for (name, typecode), length in zip(COLUMNS, lengths, strict=True):
            column = array(typecode, piece[offset : offset + length])
            if name == "item_ends" and moved:
                column = array(typecode, [end + moved for end in column])
            getattr(self, name).extend(column)
            offset += length


class CertifiedWindow:
    """Versions `first_version` to `newest_version`, and names for their GTID sources and origins.

    Most snapshots are versions themselves. The few that came as GTID sets stand in `snapshot_sets`;
    a version whose GTIDs were executed elsewhere (no single GTID, no items) has them in
    `elsewhere`.
    """

    __slots__ = (
        "_names",
        "_numbers",
        "_segments",
        "elsewhere",
        "first_segment",
        "first_version",
        "newest_version",
        "snapshot_sets",
    )

    def __init__(self, newest_version: int = 0) -> None:
        self.first_version = newest_version + 1
        self.newest_version = newest_version
        self.first_segment = self.first_version >> _SHIFT
        self._segments: list[Segment] = self._padding(self.first_version & _MASK)
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self.snapshot_sets: dict[int, GtidSet] = {}
        self.elsewhere: dict[int, GtidSet] = {}

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
        if version & _MASK == 0:
            self._segments.append(Segment())
        segment = self._segments[-1]
        numbers = self._numbers
        source, number = gtid
        segment.items.extend(items)
        segment.item_ends.append(len(segment.items))
        segment.sequence_numbers.append(sequence_number)
        segment.snapshots.append(snapshot)
        segment.gtid_sources.append(numbers[source] if source in numbers else self._number(source))
        segment.gtid_numbers.append(number)
        segment.origins.append(numbers[origin] if origin in numbers else self._number(origin))
        segment.positions.append(position)
        return version

    def append_elsewhere(self, gtid_set: GtidSet, position: int) -> int:
        """Adds a version that stands for transactions executed elsewhere."""
        version = self.append((), 0, self.newest_version, ("", 0), "", position)
        self.elsewhere[version] = gtid_set
        return version

    def drop_before(self, version: int) -> None:
        """Forgets all versions before `version`. Cost: O(segments and sets forgotten)."""
        assert version <= self.newest_version + 1
        for sets in (self.snapshot_sets, self.elsewhere):
            for old in [known for known in sets if known < version]:
                del sets[old]
        gone = (version >> _SHIFT) - self.first_segment
        if gone > 0:
            del self._segments[:gone]
            self.first_segment += gone
        self.first_version = max(self.first_version, version)

    def sequence_number(self, version: int) -> int:
        """The stamp of a version; 0 for a local transaction."""
        return self._segments[(version >> _SHIFT) - self.first_segment].sequence_numbers[
            version & _MASK
        ]

    def items(self, version: int) -> "array[int]":
        """The write set of a version."""
        return self._segment(version).items_of(version & _MASK)

    def gtid(self, version: int) -> Gtid:
        """The GTID of a version; not of one that was executed elsewhere."""
        assert version not in self.elsewhere
        segment = self._segment(version)
        index = version & _MASK
        return Gtid(self._names[segment.gtid_sources[index]], segment.gtid_numbers[index])

    def snapshot(self, version: int) -> int:
        """The version that a transaction read; a lower bound of it where `snapshot_sets` has the
        set itself.
        """
        return self._segment(version).snapshots[version & _MASK]

    def origin(self, version: int) -> str:
        """The member that sent a version's transaction."""
        return self._names[self._segment(version).origins[version & _MASK]]

    def position(self, version: int) -> int:
        """The place of a version's transaction in the total order."""
        return self._segment(version).positions[version & _MASK]

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
        """The columns from `first_version` on, as pieces of (first version, bytes), for `load`."""
        pieces = []
        while first_version <= self.newest_version:
            piece = self._segment(first_version).dump(first_version & _MASK)
            pieces.append((first_version, piece))
            first_version = ((first_version >> _SHIFT) + 1) << _SHIFT
        return pieces

    def load(self, first_version: int, piece: bytes) -> None:
        """Adds what `dump` gave; pieces come in the versions' order."""
        assert first_version == self.newest_version + 1
        if first_version & _MASK == 0:
            self._segments.append(Segment())
        segment = self._segments[-1]
        segment.load(piece)
        self.newest_version += len(segment.item_ends) - (first_version & _MASK)

    @property
    def names(self) -> list[str]:
        """The names that columns refer to by number."""
        return self._names

    def load_names(self, names: Sequence[str]) -> None:
        """Restores the names; must come before any version is added."""
        self._names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}

    def _segment(self, version: int) -> Segment:
        assert self.first_version <= version <= self.newest_version, f"version {version} not held"
        return self._segments[(version >> _SHIFT) - self.first_segment]

    def _number(self, name: str) -> int:
        number = self._numbers[name] = len(self._names)
        self._names.append(name)
        return number

    @staticmethod
    def _padding(transactions: int) -> list[Segment]:
        """The first segment with empty places for versions before the window, or none if it
        starts one.
        """
        segment = Segment()
        for name, _ in COLUMNS:
            if name != "items":
                getattr(segment, name).extend([0] * transactions)
        return [segment] if transactions else []

    def check_invariants(self) -> None:
        """Columns are of one length, ends ascend, and every version held has a place."""
        assert self.first_version <= self.newest_version + 1
        held = sum(len(segment.item_ends) for segment in self._segments)
        assert held == self.newest_version + 1 - (self.first_segment << _SHIFT)
        for segment in self._segments:
            lengths = {len(getattr(segment, name)) for name, _ in COLUMNS if name != "items"}
            assert len(lengths) == 1
            ends = segment.item_ends
            assert all(ends[i] <= ends[i + 1] for i in range(len(ends) - 1))
            assert not ends or ends[-1] == len(segment.items)
