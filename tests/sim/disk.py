"""A store in memory that forgets: what was written and not flushed may be gone after a crash.

It has the interface of `storage.store.Store` and its promises: batches are atomic and ordered,
and a crash leaves a prefix of them. `test_disk.py` runs one contract on both.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, cast

from sortedcontainers import SortedDict

from groupcert.certifier.storage.store import Family, Store

Rows = SortedDict[bytes, bytes]
DiskCopy = dict[Family, Rows]
"""All that a disk showed at one moment, as a RocksDB checkpoint has it."""


class Change(NamedTuple):
    """Removes the keys from `start` up to `end`, then puts `value`, if there is one, at `start`."""

    family: Family
    start: bytes
    end: bytes
    value: bytes | None


class MemoryBatch:
    """See `certifier.storage.store.Batch`."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Sets a key."""
        self.changes.append(Change(family, key, key + b"\x00", value))

    def apply(self, family: Family, changes: Mapping[bytes, bytes | None]) -> None:
        """Sets each key to its value, or removes it where that is None."""
        for key, value in changes.items():
            self.changes.append(Change(family, key, key + b"\x00", value))

    def delete(self, family: Family, key: bytes) -> None:
        """Removes a key, if it is there."""
        self.changes.append(Change(family, key, key + b"\x00", None))

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Removes the keys from `start` up to, not including, `end`."""
        self.changes.append(Change(family, start, end, None))


class MemoryRowsFile:
    """See `certifier.storage.store.RowsFile`."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes | None]] = []
        self._is_finished = False

    def add(self, key: bytes, value: bytes | None) -> None:
        """Puts a key, or removes it; keys ascend."""
        assert not self._is_finished
        assert not self.rows or self.rows[-1][0] < key
        self.rows.append((key, value))

    def remove(self) -> None:
        """Gives the file up."""

    def finish(self) -> None:
        """Ends the file."""
        self._is_finished = True


class MemorySnapshot:
    """See `certifier.storage.store.StoreSnapshot`."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return self._rows.get(key)

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start` on, in byte order."""
        return ((key, self._rows[key]) for key in self._rows.irange(start))


class SimulatedDisk:
    """One member's disk; it outlives the member's runs."""

    path = Path("simulated")

    def __init__(self) -> None:
        self._visible = _empty()
        self._durable = _empty()
        self._unsynced: list[list[Change]] = []
        self.ingested: Callable[[], None] = lambda: None
        """Called after each `ingest`: somebody may look at what is visible then."""
        self._adopted: DiskCopy | None = None

    def as_store(self) -> Store:
        """This disk where a store is asked for."""
        return cast(Store, self)

    @property
    def unsynced(self) -> int:
        """Batches that a crash may take."""
        return len(self._unsynced)

    def crash(self, batches_kept: int) -> None:
        """Loses all batches after the last flush but for the oldest `batches_kept`."""
        for changes in self._unsynced[:batches_kept]:
            _execute(self._durable, changes)
        self._unsynced.clear()
        self._visible = _copied(self._durable)

    def wipe(self) -> None:
        """Loses everything: it is another, empty disk."""
        self._visible, self._durable = _empty(), _empty()
        self._unsynced.clear()
        self._adopted = None

    def checkpoint(self) -> DiskCopy:
        """What it shows now, synced or not."""
        return _copied(self._visible)

    def durable(self, family: Family, key: bytes) -> bytes | None:
        """The value that a key would have after a crash that takes all it can."""
        return self._durable[family].get(key)

    def adopt(self, copy: DiskCopy) -> None:
        """Keeps a copy, safe from crashes, until `finish`; see `members/recovery/store_swap.py`."""
        self._adopted = copy

    def finish(self) -> None:
        """Puts a copy that was adopted in the place of all there was."""
        if self._adopted is not None:
            self._visible, self._durable = self._adopted, _copied(self._adopted)
            self._unsynced.clear()
            self._adopted = None

    def batch(self) -> MemoryBatch:
        """An empty batch."""
        return MemoryBatch()

    def write(self, batch: MemoryBatch) -> None:
        """Writes a batch; visible at return, durable after the next `flush`."""
        _execute(self._visible, batch.changes)
        self._unsynced.append(batch.changes)

    def flush(self) -> None:
        """Makes every batch written so far durable."""
        for changes in self._unsynced:
            _execute(self._durable, changes)
        self._unsynced.clear()

    def rows_file(self, name: str) -> MemoryRowsFile:
        """A new file for `ingest`."""
        del name
        return MemoryRowsFile()

    def ingest(self, family: Family, file: MemoryRowsFile) -> None:
        """Takes the rows of a file in: visible and durable, and all that was written before is."""
        batch = self.batch()
        batch.apply(family, dict(file.rows))
        self.write(batch)
        self.flush()
        self.ingested()

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of a key."""
        return self._visible[family].get(key)

    def scan(self, family: Family, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a family from `start` on, in byte order, as they are at the call."""
        rows = self._visible[family]
        return iter([(key, rows[key]) for key in rows.irange(start)])

    def last(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """The last key of a family up to `key`, and its value; None where there is none."""
        rows = self._visible[family]
        found = next(rows.irange(maximum=key, reverse=True), None)
        return None if found is None else (found, rows[found])

    def snapshot(self, family: Family) -> MemorySnapshot:
        """A view of one family that later writes do not change."""
        return MemorySnapshot(self._visible[family].copy())

    def close(self) -> None:
        """What was written and not flushed is flushed."""
        self.flush()


def _empty() -> DiskCopy:
    return {family: SortedDict() for family in Family}


def _copied(families: DiskCopy) -> DiskCopy:
    return {family: rows.copy() for family, rows in families.items()}


def _execute(families: DiskCopy, changes: list[Change]) -> None:
    for family, start, end, value in changes:
        rows = families[family]
        for key in list(rows.irange(start, end, inclusive=(True, False))):
            del rows[key]
        if value is not None:
            rows[start] = value
