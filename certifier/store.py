"""The member's store: one RocksDB that certification info, relay queue and rows share, so that they
agree.

The rule it keeps: what belongs together is one batch, written atomically and in order; a crash
leaves a prefix of the batches. Writing is not syncing: `flush` makes all earlier batches durable
and lets other threads run meanwhile (a write with `sync=True` would hold the interpreter lock for
the time of the fsync).
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from rocksdict import (
    AccessType,
    ColumnFamily,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
)

from certifier.certified_window import SEGMENT_TRANSACTIONS, CertifiedWindow
from certifier.checkpoint import dump, restore
from certifier.core import Certifier
from certifier.errors import CorruptStore, DiskFull, ForeignDataFolder, UnsupportedFormat

FORMAT_VERSION = 1
WAL_BYTES_MAX = 256 << 20
WRITE_BUFFER_BYTES = 64 << 20
SCAN_PAGE_ROWS = 256
_FORMAT_KEY = b"format"
_IDENTITY_KEY = b"identity"
_KEY_BYTES = 8
_FULL_DISK_WORDS = ("No space left", "space limit", "Disk quota", "File too large")
_IN_USE_WORDS = "/LOCK: "


class Family(Enum):
    """The column families. Keys of all but META and DATA are 8-byte big-endian integers, in
    order; those of BINARY_LOG are two of them.
    """

    META = "default"
    CERTIFICATION = "certification"
    OUTCOMES = "outcomes"
    RELAY = "relay"
    DATA = "data"
    HISTORY = "history"
    DECISIONS = "decisions"
    BINARY_LOG = "binary_log"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """Whose store it is; opening another's is refused."""

    group: str
    member: str


def integer_key(number: int) -> bytes:
    """The key of a version, position or sequence; keys sort as the numbers do."""
    return number.to_bytes(_KEY_BYTES, "big")


class Batch:
    """Changes that become visible and durable together."""

    __slots__ = ("_families", "changes")

    def __init__(self, families: dict[Family, ColumnFamily]) -> None:
        self._families = families
        self.changes = WriteBatch(raw_mode=True)

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Sets a key."""
        self.changes.put(key, value, self._families[family])

    def apply(self, family: Family, changes: Mapping[bytes, bytes | None]) -> None:
        """Sets each key to its value, or removes it where that is None."""
        put, delete, handle = self.changes.put, self.changes.delete, self._families[family]
        for key, value in changes.items():
            if value is None:
                delete(key, handle)
            else:
                put(key, value, handle)

    def delete(self, family: Family, key: bytes) -> None:
        """Removes a key, if it is there."""
        self.changes.delete(key, self._families[family])

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Removes the keys from `start` up to, not including, `end`."""
        self.changes.delete_range(start, end, self._families[family])


class StoreSnapshot:
    """The rows as they were when it was taken, whatever is written later; for one thread.

    It is a RocksDB iterator, which sees what was there when it was made, and whose `status` raises
    what reading has met. (A `rocksdict.Snapshot` would not do: iterating shows later writes.)
    """

    __slots__ = ("_iterator",)

    def __init__(self, iterator: RdictIter) -> None:
        self._iterator = iterator

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        iterator = self._iterator
        iterator.seek(key)
        if not iterator.valid():
            iterator.status()
            return None
        value: bytes = iterator.value()
        return value if iterator.key() == key else None

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start` on, in byte order."""
        while page := self._page(start):
            yield from page
            start = page[-1][0] + b"\x00"

    def _page(self, start: bytes) -> list[tuple[bytes, bytes]]:
        """The first rows of a scan; read at once, because another scan may move the iterator."""
        iterator = self._iterator
        iterator.seek(start)
        page: list[tuple[bytes, bytes]] = []
        while iterator.valid() and len(page) < SCAN_PAGE_ROWS:
            page.append((iterator.key(), iterator.value()))
            iterator.next()
        iterator.status()
        return page


class Store:
    """One member's RocksDB."""

    def __init__(self, path: Path, identity: StoreIdentity) -> None:
        """Opens the store of `identity` at `path`, or makes it where there is none.

        Raises:
            ForeignDataFolder: it is another group's or member's, or is in use by another process.
            UnsupportedFormat: another release wrote it.
            DiskFull: there is no space to make it.
            CorruptStore: RocksDB cannot read it.
        """
        self.path = path
        self._failure: Exception | None = None
        self._rdict = _open(path)
        self._families = {
            family: self._rdict.get_column_family_handle(family.value) for family in Family
        }
        self._readers = {
            family: self._rdict
            if family is Family.META
            else self._rdict.get_column_family(family.value)
            for family in Family
        }
        try:
            self._check_identity(identity)
        except Exception:
            self.close()
            raise

    def batch(self) -> Batch:
        """An empty batch."""
        return Batch(self._families)

    def write(self, batch: Batch) -> None:
        """Writes a batch; visible at return, durable after the next `flush`.

        Raises:
            DiskFull: nothing of it was written; the store must be opened again once there is space.
        """
        try:
            self._rdict.write(batch.changes)
        except Exception as error:
            raise self._failed(error) from error

    def flush(self) -> None:
        """Makes every batch written so far durable. Lets other threads run; one thread calls it
        for all.
        """
        try:
            self._rdict.flush_wal(True)
        except Exception as error:
            raise self._failed(error) from error

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of a key.

        Raises:
            CorruptStore: it cannot be read.
        """
        try:
            value: bytes | None = self._readers[family].get(key)
        except Exception as error:
            raise _explained(self.path, error) from error
        return value

    def scan(self, family: Family, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a family from `start` on, in byte order."""
        yield from self._readers[family].items(from_key=start)

    def last(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """The last key of a family up to `key`, and its value; None where there is none."""
        iterator = self._readers[family].iter()
        iterator.seek_for_prev(key)
        if not iterator.valid():
            iterator.status()
            return None
        return iterator.key(), iterator.value()

    def snapshot(self, family: Family) -> StoreSnapshot:
        """A view of one family that later writes do not change."""
        return StoreSnapshot(self._readers[family].iter())

    def close(self) -> None:
        """Releases the folder; what was written and not flushed is flushed.

        Raises:
            DiskFull: that could not be; the folder is released all the same.
        """
        self._readers.clear()
        self._families.clear()
        try:
            self._rdict.close()
        except Exception as error:
            raise self._failed(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _failed(self, error: Exception) -> Exception:
        """What an error of writing means: the first one is the cause of all that follow, as RocksDB
        refuses every write after it and does not say why.
        """
        self._failure = self._failure or _explained(self.path, error)
        return self._failure

    def _check_identity(self, identity: StoreIdentity) -> None:
        found_format = self._rdict.get(_FORMAT_KEY)
        mine = json.dumps({"group": identity.group, "member": identity.member}).encode()
        if found_format is None:
            batch = self.batch()
            batch.put(Family.META, _FORMAT_KEY, str(FORMAT_VERSION).encode())
            batch.put(Family.META, _IDENTITY_KEY, mine)
            self.write(batch)
            self.flush()
            return
        if found_format != str(FORMAT_VERSION).encode():
            raise UnsupportedFormat(
                what=f"data folder {self.path}",
                found=found_format.decode(errors="replace"),
                supported=str(FORMAT_VERSION),
            )
        found = self._rdict.get(_IDENTITY_KEY)
        if found != mine:
            raise ForeignDataFolder(
                path=str(self.path),
                found=(found or b"nobody").decode(errors="replace"),
                expected=mine.decode(),
            )


class CertificationInfoStore:
    """The certifier's state in the store: a checkpoint, and the certified transactions not
    collected yet.

    The map from items to writers is not stored: it is the window's write sets read in order, and is
    built again from them. So a batch costs one write whatever the number of items, and a collection
    deletes what it passed.
    """

    CHECKPOINT_KEY = b"certifier"

    def __init__(self, store: Store, certifier: Certifier) -> None:
        self._store = store
        self.certifier = certifier
        self._saved_version = 0
        self._piece_versions: deque[int] = deque()

    def save(self, batch: Batch) -> None:
        """Adds to the batch what the certifier decided and collected since the last call."""
        window = self.certifier.window
        for first, rows in window.dump(max(self._saved_version + 1, window.first_version)):
            batch.put(Family.CERTIFICATION, integer_key(first), _piece(window, first, rows))
            self._piece_versions.append(first)
        self._saved_version = window.newest_version
        self._delete_collected(batch, window.first_version)
        checkpoint = json.dumps(dump(self.certifier), separators=(",", ":"))
        batch.put(Family.META, self.CHECKPOINT_KEY, checkpoint.encode())

    def load(self) -> bool:
        """Brings a new certifier to the state that was saved; False where none was.

        Raises:
            CorruptStore: some of the state is not there.

        Cost: O(items in the window); about 0.5 s a million.
        """
        saved = self._store.get(Family.META, self.CHECKPOINT_KEY)
        if saved is None:
            return False
        pieces = []
        for key, piece in self._store.scan(Family.CERTIFICATION):
            first_version = int.from_bytes(key, "big")
            self._piece_versions.append(first_version)
            pieces.append((first_version, *_rows_and_sets(piece)))
        try:
            restore(self.certifier, json.loads(saved), pieces)
        except ValueError as error:
            raise CorruptStore(path=str(self._store.path), problem=str(error)) from error
        self._saved_version = self.certifier.window.newest_version
        return True

    def _delete_collected(self, batch: Batch, first_version: int) -> None:
        """Deletes the pieces whose successor starts at `first_version` or before, and the last one
        where nothing is left.
        """
        versions = self._piece_versions
        while len(versions) > 1 and versions[1] <= first_version:
            batch.delete(Family.CERTIFICATION, integer_key(versions.popleft()))
        if versions and self._saved_version < first_version:
            batch.delete(Family.CERTIFICATION, integer_key(versions.popleft()))


def _piece(window: CertifiedWindow, first_version: int, rows: bytes) -> bytes:
    """A piece as it is stored: the rows' length, the rows, and the GTID sets of versions that have
    some.
    """
    last_version = min(window.newest_version, first_version | SEGMENT_TRANSACTIONS - 1)
    versions = range(first_version, last_version + 1)
    sets = {
        name: {version: str(found[version]) for version in versions if version in found}
        for name, found in (("read", window.snapshot_sets), ("elsewhere", window.elsewhere))
    }
    tail = json.dumps(sets).encode() if any(sets.values()) else b""
    return len(rows).to_bytes(4, "little") + rows + tail


def _rows_and_sets(piece: bytes) -> tuple[bytes, dict[str, dict[str, str]]]:
    length = 4 + int.from_bytes(piece[:4], "little")
    return piece[4:length], json.loads(piece[length:]) if len(piece) > length else {}


def _open(path: Path) -> Rdict:
    try:
        path.mkdir(parents=True, exist_ok=True)
        return Rdict(
            str(path / "rocksdb"),
            _options(),
            column_families={family.value: _options() for family in Family},
            access_type=AccessType.read_write(),
        )
    except Exception as error:
        raise _explained(path, error) from error


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_max_total_wal_size(WAL_BYTES_MAX)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_keep_log_file_num(4)
    options.set_allow_concurrent_memtable_write(False)  # the interpreter lock allows none
    return options


def _explained(path: Path, error: Exception) -> Exception:
    """The error in the project's words: who must act, and what to do."""
    text = str(error)
    if any(words in text for words in _FULL_DISK_WORDS):
        return DiskFull(path=str(path), cause=text)
    if _IN_USE_WORDS in text:
        return ForeignDataFolder(
            path=str(path), found="a process that has it open", expected="nobody else to use it"
        )
    if isinstance(error, OSError):
        return error
    return CorruptStore(path=str(path), problem=text)
