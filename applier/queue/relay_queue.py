"""The relay queue: certified transactions that wait for the applier, stored before anything else
happens to them.

Entries appended in one batch are one stored group, written with the rest of that batch; a group is
deleted in the batch that executed the last of its entries. So a crash at any moment leaves each
transaction in the queue, in the rows, or in both, never in neither. Executed groups may be kept for
a while, for whoever copies the store and has older rows.
"""

import struct
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import eq
from typing import NamedTuple, TypeVar

from ...certifier.errors import CorruptStore, InvalidSetting, UnsupportedFormat
from ...certifier.storage.store import Batch, Family, Store, integer_key
from .fragment_references import REFERENCE_BYTES
from .relay_group import RelayEntry, RelayGroup

ENTRIES_MAX = 500_000
BYTES_MAX = 512 << 20
FORMAT = 2
_HEADER = struct.Struct("<BI")
_SIZES = struct.Struct("<II")
_COLUMN = struct.Struct("<BQ")
_COLUMNS = 13
_ONE_VALUE, _RUN = 0, 1
Cut = TypeVar("Cut", "array[int]", memoryview)
PLAIN_MAX = 12
"""Entries up to which a group's numbers are stored as they are: some hundred bytes more, and three
times as fast."""


class _Group(NamedTuple):
    """The numbers of a stored group that are kept in memory."""

    first_position: int
    last_position: int
    first_version: int
    entries: int
    bytes: int


class RelayQueue:
    """The stored groups of one member, oldest first.

    One thread may append while another discards: each writes only its own counters.
    """

    def __init__(
        self,
        store: Store,
        *,
        entries_max: int = ENTRIES_MAX,
        bytes_max: int = BYTES_MAX,
        kept_bytes_max: int = 0,
    ) -> None:
        """Opens the queue; at `entries_max` or `bytes_max` it `is_full`, but refuses nothing. It
        keeps up to `kept_bytes_max` bytes of groups that are executed, which do not count there.
        """
        for name, limit in (("relay_entries_max", entries_max), ("relay_bytes_max", bytes_max)):
            if limit < 1:
                raise InvalidSetting(name=name, value=limit, expected="1 or more")
        self._store = store
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._kept_bytes_max = kept_bytes_max
        self._kept_bytes = 0
        self._groups: deque[_Group] = deque()
        self._kept: deque[_Group] = deque()
        self._unwritten: _Group | None = None
        self._newest = -1
        self._appended = self._appended_bytes = 0
        self._discarded = self._discarded_bytes = 0

    def append(self, batch: Batch, entries: Sequence[RelayEntry]) -> None:
        """Adds a group to the batch: entries in the total order, after all earlier ones. Call
        `written` once the batch is written: a group discarded before it is stored would stay for
        ever.

        Cost: one put, whatever the number of entries.
        """
        if not entries:
            return
        group = RelayGroup.of(entries)
        encoded = encode(group)
        # Under its first position, so that a scan gives the groups in the order of the log.
        batch.put(Family.RELAY, integer_key(group.positions[0]), encoded)
        self._unwritten = self._group_of(group, len(encoded))

    def written(self) -> None:
        """Allows the group of the last `append` to be discarded, as its batch is now stored."""
        if self._unwritten:
            self._remember(self._unwritten)
            self._unwritten = None

    def discard(self, batch: Batch, position: int) -> int:
        """Adds to the batch the removal of all groups that end at or before `position`, but for
        those that are kept. Returns the last position that is removed; -1: none is.

        Cost: one delete a group.
        """
        groups, kept, removed = self._groups, self._kept, -1
        # A group goes with its last entry: entries that were executed before stay beside it, and
        # are skipped by their position after a restart.
        while groups and groups[0].last_position <= position:
            group = groups.popleft()
            self._discarded += group.entries
            self._discarded_bytes += group.bytes
            self._kept_bytes += group.bytes
            kept.append(group)
        while self._kept_bytes > self._kept_bytes_max:
            group = kept.popleft()
            batch.delete(Family.RELAY, integer_key(group.first_position))
            self._kept_bytes -= group.bytes
            removed = group.last_position
        return removed

    def load(self, executed: int = -1) -> Iterator[RelayGroup]:
        """Yields the groups that an earlier process stored, and adds them to this queue. Of those
        that end at or before the position `executed` it yields such as refer to fragments alone:
        there may be some GiB of them.

        Raises:
            CorruptStore: a group is not what was written.
            UnsupportedFormat: another release wrote it.
        """
        path = str(self._store.path)
        for key, stored in self._store.scan(Family.RELAY):
            group, refers = _described(stored, path)
            assert integer_key(group.first_position) == key, "a group under another group's key"
            self._remember(group)
            if refers or group.last_position > executed:
                yield decode(stored, path)

    def read(self, position: int) -> Iterator[RelayGroup]:
        """Yields the stored groups that end behind a position, as `load` does."""
        found = self._store.last(Family.RELAY, integer_key(max(position, 0)))
        for _, stored in self._store.scan(Family.RELAY, found[0] if found else b""):
            group = decode(stored, str(self._store.path))
            if group.positions[-1] > position:
                yield group

    def _group_of(self, entries: RelayGroup, size: int) -> _Group:
        first, last = entries.positions[0], entries.positions[-1]
        first_version = _first_version(entries.versions[0], bool(entries.sources[0]))
        return _Group(first, last, first_version, len(entries), size)

    def _remember(self, group: _Group) -> None:
        assert self._newest < group.first_position, "appended out of order"
        self._newest = group.last_position
        self._groups.append(group)
        self._appended += group.entries
        self._appended_bytes += group.bytes

    @property
    def length(self) -> int:
        """Entries in stored groups, executed ones included until the rest of their group is."""
        return self._appended - self._discarded

    @property
    def bytes(self) -> int:
        """Bytes of the stored groups."""
        return self._appended_bytes - self._discarded_bytes

    @property
    def first_version(self) -> int:
        """The oldest version that it has, of groups that are kept, too; 0: it has none."""
        first = next(chain(self._kept, self._groups), None)
        return first.first_version if first else 0

    @property
    def is_full(self) -> bool:
        """True if the log should be read more slowly: `entries_max` or `bytes_max` is reached."""
        return self.length >= self._entries_max or self.bytes >= self._bytes_max


def encode(
    entries: Sequence[RelayEntry],
    stamps: tuple[Sequence[int], Sequence[int]] | None = None,
    before: bytes = b"",
) -> bytes:
    """Returns a group as it is stored: format, checksum, sizes, a column for each number, the
    GTIDs' sources, the write sets, the payloads.

    `stamps`: other values for `last_committed` and `sequence_number`. Of the headers there is what
    a member knows before the transaction is in its binary log. `before`: bytes that come first.
    """
    group = RelayGroup.of(entries)
    sources = [source for source in dict.fromkeys(group.sources) if source]
    number_of = {source: number for number, source in enumerate(sources, 1)}
    number_of[""] = 0
    columns = (
        group.positions,
        group.versions,
        *(stamps or (group.last_committed, group.sequence_numbers)),
        group.local,
        [number_of[source] for source in group.sources],
        group.numbers,
        list(map(len, group.payloads)),
        group.parents,
        group.domains,
        group.views,
        # Columns are unsigned: 0 stands for a version that is not known.
        [0 if version is None else version + 1 for version in group.locked],
        list(map(len, group.items)),
    )
    text = "\n".join(sources).encode()
    parts = [
        _SIZES.pack(len(group), len(text)),
        *(
            map(_packed, columns)
            if len(group) > PLAIN_MAX
            else [array("Q", chain.from_iterable(columns)).tobytes()]
        ),
        text,
        array("Q", chain.from_iterable(group.items)).tobytes(),
        *group.payloads,
    ]
    body = b"".join(parts)
    return b"".join((before, _HEADER.pack(FORMAT, zlib.crc32(body)), body))


def decode(stored: bytes, path: str) -> RelayGroup:
    """Returns the entries of a stored group; errors name `path`.

    Raises:
        CorruptStore: it is not what was written.
        UnsupportedFormat: another release wrote it.
    """
    body = _checked(stored, path)
    count, text_length = _SIZES.unpack_from(body)
    columns, offset = _columns(body, _SIZES.size, count)
    positions, versions, committed, sequences, local, sources, numbers, lengths = columns[:8]
    names = ["", *str(body[offset : offset + text_length], "utf-8").split("\n")]
    group = RelayGroup()
    group.positions, group.versions, group.numbers = map(list, (positions, versions, numbers))
    group.last_committed, group.sequence_numbers = list(committed), list(sequences)
    group.local = list(map(bool, local))
    group.sources = [names[source] for source in sources]
    group.parents, group.domains, group.views = map(list, columns[8:11])
    group.locked = [version - 1 if version else None for version in columns[11]]
    offset += text_length
    items = array("Q")
    end = offset + items.itemsize * sum(columns[12])
    items.frombytes(body[offset:end])
    group.items = [tuple(part) for part in _cut(items, columns[12])]
    group.payloads = [bytes(part) for part in _cut(body[end:], lengths)]
    assert end + sum(lengths) == len(body), "a group's payloads do not end where the group does"
    return group


def _described(stored: bytes, path: str) -> tuple[_Group, bool]:
    """Returns the numbers of a stored group, and whether it may refer to fragments; raises as
    `decode`.
    """
    body = _checked(stored, path)
    count, _ = _SIZES.unpack_from(body)
    columns, _ = _columns(body, _SIZES.size, count)
    positions, versions, sources, sizes = (columns[index] for index in (0, 1, 5, 7))
    first_version = _first_version(versions[0], bool(sources[0]))
    group = _Group(positions[0], positions[-1], first_version, count, len(stored))
    return group, REFERENCE_BYTES in sizes


def _first_version(version: int, has_gtid: bool) -> int:
    """Returns the version of a group's first transaction: a view change bears the one before it."""
    return version if has_gtid else version + 1


def _cut(values: Cut, lengths: Sequence[int]) -> Iterator[Cut]:
    """Yields consecutive parts of some lengths."""
    start = 0
    for length in lengths:
        yield values[start : start + length]
        start += length


def _checked(stored: bytes, path: str) -> memoryview:
    """Returns the bytes after format and checksum."""
    if len(stored) < _HEADER.size + _SIZES.size:
        raise CorruptStore(path=path, problem=f"a relay group of {len(stored)} bytes")
    found_format, checksum = _HEADER.unpack_from(stored)
    if found_format != FORMAT:
        what = f"relay queue in {path}"
        raise UnsupportedFormat(what=what, found=str(found_format), supported=str(FORMAT))
    body = memoryview(stored)[_HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise CorruptStore(path=path, problem="the checksum of a relay group does not match")
    return body


def _columns(body: memoryview, offset: int, count: int) -> tuple[list[Sequence[int]], int]:
    """Returns the columns of a group, and where they end."""
    columns: list[Sequence[int]] = []
    if count <= PLAIN_MAX:
        plain = array("Q")
        end = offset + _COLUMNS * count * plain.itemsize
        plain.frombytes(body[offset:end])
        return [plain[start : start + count] for start in range(0, len(plain), count)], end
    for _ in range(_COLUMNS):
        column, offset = _unpacked(body, offset, count)
        columns.append(column)
    return columns, offset


def _packed(values: Sequence[int]) -> bytes:
    """Returns a column as it is stored: one value, a run of values that step by one, or the
    smallest value and each value's distance from it, in the narrowest integers.
    """
    first, count = values[0], len(values)
    if values.count(first) == count:
        return _COLUMN.pack(_ONE_VALUE, first)
    if values[-1] - first == count - 1 and all(map(eq, values, range(first, first + count))):
        return _COLUMN.pack(_RUN, first)
    smallest = min(values)
    spread = max(values) - smallest
    typecode = next(code for code in "BHIQ" if spread >> 8 * array(code).itemsize == 0)
    distances = array(typecode, [value - smallest for value in values])
    return _COLUMN.pack(ord(typecode), smallest) + distances.tobytes()


def _unpacked(body: memoryview, offset: int, count: int) -> tuple[Sequence[int], int]:
    """Returns a column of `count` values, and where it ends."""
    code, smallest = _COLUMN.unpack_from(body, offset)
    offset += _COLUMN.size
    if code == _ONE_VALUE:
        return [smallest] * count, offset
    if code == _RUN:
        return range(smallest, smallest + count), offset
    distances = array(chr(code))
    end = offset + count * distances.itemsize
    distances.frombytes(body[offset:end])
    return [smallest + distance for distance in distances], end
