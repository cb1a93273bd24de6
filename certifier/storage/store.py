"""The member's store: one RocksDB for certification info, relay queue and rows, so that they agree.

Changes that belong together are one batch, written atomically and in order; a crash leaves a prefix
of the batches. Writing is not syncing: `flush` makes all earlier batches durable and lets other
threads run meanwhile (a write with `sync=True` would hold the interpreter lock for the time of the
fsync).
"""

import json
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self, TypeVar

from rocksdict import (
    AccessType,
    Checkpoint,
    ColumnFamily,
    DbClosedError,
    DBRecoveryMode,
    IngestExternalFileOptions,
    Options,
    Rdict,
    RdictIter,
    SstFileWriter,
    WriteBatch,
)

from ..errors import ForeignDataFolder, NotServing, UnsupportedFormat
from .rocksdb_errors import explained

FORMAT_VERSION = 1
WAL_BYTES_MAX = 256 << 20
WRITE_BUFFER_BYTES = 64 << 20
SCAN_PAGE_ROWS = 256
ROCKSDB_FOLDER = "rocksdb"
IDENTITY_KEY = b"identity"
COPY_KEY = b"copy"
"""Is there while the rows are a copy of another member's and were not compared with the group's."""
SCAN_PAGE_BYTES = 1 << 20
ROWS_FILES = "rows-files"
"""The folder of the files that are to be ingested."""
_FORMAT_KEY = b"format"
_KEY_BYTES = 8
_PRIVATE = 0o700
"""Of the folders that are made here: nobody else on the machine reads rows."""

Value = TypeVar("Value")


class Family(Enum):
    """The column families. Keys of all but META and DATA are 8-byte big-endian integers, in
    order; those of BINARY_LOG are two of them, those of FRAGMENTS three.
    """

    META = "default"
    CERTIFICATION = "certification"
    OUTCOMES = "outcomes"
    RELAY = "relay"
    DATA = "data"
    HISTORY = "history"
    DECISIONS = "decisions"
    BINARY_LOG = "binary_log"
    FRAGMENTS = "fragments"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """The owner of a store; opening another's store is refused."""

    group: str
    member: str


def integer_key(number: int) -> bytes:
    """Returns the key of a version, position or sequence; keys sort as the numbers do."""
    return number.to_bytes(_KEY_BYTES, "big")


class Batch:
    """Collects changes that become visible and durable together."""

    __slots__ = ("_families", "changes")

    def __init__(self, families: dict[Family, ColumnFamily]) -> None:
        self._families = families
        self.changes = WriteBatch(raw_mode=True)

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Sets a key."""
        self.changes.put(key, value, self._families[family])

    def apply(self, family: Family, changes: Mapping[bytes, bytes | None]) -> None:
        """Sets each key to its value, or removes it if the value is None."""
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
    """Reads the rows as they were when it was taken, whatever is written later; for one thread.

    It is a RocksDB iterator, which sees what was there when it was made, and whose `status` raises
    what reading has met. (A `rocksdict.Snapshot` would not do: iterating shows later writes.)
    """

    __slots__ = ("_iterator", "_path")

    def __init__(self, iterator: RdictIter, path: Path) -> None:
        self._iterator = iterator
        self._path = path

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a key.

        Raises:
            CorruptStore: it cannot be read.
        """
        iterator = self._iterator
        iterator.seek(key)
        if not iterator.valid():
            _check(iterator, self._path)
            return None
        value: bytes = iterator.value()
        return value if iterator.key() == key else None

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values from `start` on, in byte order.

        Raises:
            CorruptStore: what comes next cannot be read.
        """
        while page := self._page(start):
            yield from page
            start = page[-1][0] + b"\x00"

    def _page(self, start: bytes) -> list[tuple[bytes, bytes]]:
        """Returns the first rows of a scan, as a list: another scan may move the iterator."""
        iterator = self._iterator
        iterator.seek(start)
        page: list[tuple[bytes, bytes]] = []
        size = 0
        while iterator.valid() and len(page) < SCAN_PAGE_ROWS and size < SCAN_PAGE_BYTES:
            page.append((iterator.key(), iterator.value()))
            size += len(page[-1][1])
            iterator.next()
        _check(iterator, self._path)
        return page


class RowsFile:
    """Writes rows of one family, in ascending order of keys, for `Store.ingest` to take."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = SstFileWriter(_options())
            self._writer.open(str(path))
        except Exception as error:
            raise explained(path, error) from error

    def add(self, key: bytes, value: bytes | None) -> None:
        """Adds a key with its value, or with None its removal; keys ascend.

        Raises:
            DiskFull: there is no space for it.
        """
        try:
            if value is None:
                del self._writer[key]
            else:
                self._writer[key] = value
        except Exception as error:
            raise explained(self.path, error) from error

    def remove(self) -> None:
        """Deletes the file."""
        self.path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Closes the file, so that it can be ingested.

        Raises:
            DiskFull: there is no space for it.
        """
        try:
            self._writer.finish()
        except Exception as error:
            raise explained(self.path, error) from error


class _Open(dict[Family, Value]):
    """The column families of an open store. NotServing is raised for one of a closed store: whoever
    uses it has waited for something, and outlived the member's run.
    """

    def __init__(self, member: str) -> None:
        self._member = member

    def __missing__(self, family: Family) -> Value:
        raise _closed(self._member)


class Store:
    """One member's RocksDB. Once it is closed, all but `property` raise NotServing."""

    def __init__(self, path: Path, identity: StoreIdentity, *, adopt: bool = False) -> None:
        """Opens the store of `identity` at `path`; creates it if there is none.

        `adopt`: it is a copy of another member's, and belongs to `identity` from now on.

        Raises:
            ForeignDataFolder: it is another group's or member's, or is in use by another process.
            InvalidSetting: it cannot be locked.
            UnsupportedFormat: another release wrote it.
            DiskFull: there is no space to make it.
            CorruptStore: RocksDB cannot read it.
        """
        self.path = path
        self._member = identity.member
        self._failure: Exception | None = None
        self._syncing, self._flushing = threading.Lock(), threading.Lock()
        self._rdict = open_families(path, AccessType.read_write())
        self._families = _Open[ColumnFamily](identity.member)
        self._readers = _Open[Rdict](identity.member)
        for family in Family:
            self._families[family] = self._rdict.get_column_family_handle(family.value)
            self._readers[family] = (
                self._rdict
                if family is Family.META
                else self._rdict.get_column_family(family.value)
            )
        try:
            self._check_identity(identity, adopt=adopt)
        except Exception:
            self.close()
            raise

    def batch(self) -> Batch:
        """Returns an empty batch."""
        return Batch(self._families)

    def write(self, batch: Batch) -> None:
        """Writes a batch: visible at return, durable after the next `flush`.

        Raises:
            DiskFull: nothing of it was written; the store must be opened again once there is space.
        """
        try:
            self._rdict.write(batch.changes)
        except Exception as error:
            raise self._failed(error) from error

    def flush(self) -> None:
        """Makes every batch written so far durable, for all threads. Other threads can run
        meanwhile.
        """
        try:
            with self._syncing:
                self._rdict.flush_wal(True)
        except Exception as error:
            raise self._failed(error) from error

    def flush_tables(self) -> None:
        """Writes the memory tables of all families to files, so that a checkpoint after it has
        little to write. Other threads can run meanwhile; it ends early if one of them closes the
        store.

        Raises:
            DiskFull: there is no space for them.
        """
        try:
            for family in Family:
                with self._flushing, suppress(NotServing):  # It is closed meanwhile.
                    self._readers[family].flush()
        except Exception as error:
            raise self._failed(error) from error

    def checkpoint(self, path: Path) -> None:
        """Makes a folder with the store as it is now. Files that never change again are hard links,
        so the folder must be on the same file system; to open the copy, open the folder's parent as
        a store.

        Raises:
            DiskFull: there is no space for it; the store itself goes on.

        Cost: what `flush_tables` left to write; no other thread runs meanwhile.
        """
        try:
            Checkpoint(self._rdict).create_checkpoint(str(path))
        except DbClosedError:
            raise _closed(self._member) from None
        except Exception as error:
            raise explained(path, error) from error

    def rows_file(self, name: str) -> RowsFile:
        """Returns a new file for `ingest`."""
        return RowsFile(self.path / ROWS_FILES / f"{name}.sst")

    def ingest(self, family: Family, file: RowsFile) -> None:
        """Takes the rows of a finished file into a family and removes the file. At return they are
        visible and durable, as is all that was written before.

        Raises:
            DiskFull: nothing of it was taken.
        """
        self.flush()
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        try:
            # Otherwise the ingestion would write the memory tables itself, and no other thread
            # could run.
            with self._flushing:
                self._readers[family].flush()
            self._readers[family].ingest_external_file([str(file.path)], options)
        except Exception as error:
            raise self._failed(error) from error

    def remove_rows_files(self) -> None:
        """Removes the files that were made and not ingested."""
        shutil.rmtree(self.path / ROWS_FILES, ignore_errors=True)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Returns the value of a key; None if the family does not have it.

        Raises:
            CorruptStore: it cannot be read.
        """
        reader = self._readers[family]
        try:
            value: bytes | None = reader.get(key)
        except Exception as error:
            raise explained(self.path, error) from error
        return value

    def scan(self, family: Family, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values of a family from `start` on, in byte order.

        Raises:
            CorruptStore: what comes next cannot be read.
        """
        yield from scan_whole(self._readers[family], start, self.path)

    def last(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """Returns the last key of a family up to `key`, and its value; None if there is none.

        Raises:
            CorruptStore: it cannot be read.
        """
        iterator = self._readers[family].iter()
        iterator.seek_for_prev(key)
        if not iterator.valid():
            _check(iterator, self.path)
            return None
        return iterator.key(), iterator.value()

    def snapshot(self, family: Family) -> StoreSnapshot:
        """Returns a view of one family that later writes do not change."""
        return StoreSnapshot(self._readers[family].iter(), self.path)

    def property(self, name: str) -> dict[Family, int]:
        """Returns a number of RocksDB's own for each family, see `DB::Properties` in its db.h; none
        once the store is closed. Cost: 1 us a family.
        """
        return {
            family: reader.property_int_value(f"rocksdb.{name}") or 0
            for family, reader in self._readers.items()
        }

    def close(self) -> None:
        """Flushes what was written and releases the folder.

        Raises:
            DiskFull: that could not be; the folder is released all the same.
        """
        try:
            self._readers.clear()  # A thread that flushes tables stops at the next.
            with self._syncing, self._flushing:  # RocksDB cannot be closed meanwhile.
                self._families.clear()
                self._rdict.close()
        except Exception as error:
            raise self._failed(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failed(self, error: Exception) -> Exception:
        """Returns the exception for an error of writing. The first one is kept and returned for all
        later errors: RocksDB refuses every write after it and does not say why.
        """
        if isinstance(error, (DbClosedError, NotServing)):
            return self._failure or _closed(self._member)
        self._failure = self._failure or explained(self.path, error)
        return self._failure

    def _check_identity(self, identity: StoreIdentity, *, adopt: bool) -> None:
        found_format = self.get(Family.META, _FORMAT_KEY)
        mine = json.dumps({"group": identity.group, "member": identity.member}).encode()
        if found_format is None and not adopt:
            self._write_identity(mine)
            return
        if found_format != str(FORMAT_VERSION).encode():
            raise UnsupportedFormat(
                what=f"data folder {self.path}",
                found=(found_format or b"none").decode(errors="replace"),
                supported=str(FORMAT_VERSION),
            )
        found = self.get(Family.META, IDENTITY_KEY)
        if adopt and json.loads(found or b"{}").get("group") == identity.group:
            self._write_identity(mine, is_copy=True)
        elif found != mine:
            raise ForeignDataFolder(
                path=str(self.path),
                found=(found or b"nobody").decode(errors="replace"),
                expected=mine.decode(),
            )

    def _write_identity(self, identity: bytes, *, is_copy: bool = False) -> None:
        batch = self.batch()
        batch.put(Family.META, _FORMAT_KEY, str(FORMAT_VERSION).encode())
        batch.put(Family.META, IDENTITY_KEY, identity)
        if is_copy:
            batch.put(Family.META, COPY_KEY, b"")
        self.write(batch)
        self.flush()


def _closed(member: str) -> NotServing:
    return NotServing(member=member, state="OFFLINE")


def scan_whole(family: Rdict, start: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values from `start` on; raises CorruptStore at a block that cannot be read.
    RocksDB's fast iteration ends at such a block as at the end of the family, so the next row is
    read once more with an iterator that reports errors.
    """
    pair: tuple[bytes, bytes]
    for pair in family.items(from_key=start):  # type: ignore[assignment]  # raw mode has bytes
        yield pair
        start = pair[0]
    iterator = family.iter()
    iterator.seek(start)
    if iterator.valid():
        iterator.next()
    _check(iterator, path)


def _check(iterator: RdictIter, path: Path) -> None:
    """Raises the error that an iterator has met; without this call it looks like the end."""
    try:
        iterator.status()
    except Exception as error:
        # The traceback is dropped: it has the iterator, which would hold the store open.
        raise explained(path, error) from error.with_traceback(None)


def open_families(path: Path, access: AccessType) -> Rdict:
    """Opens RocksDB in a store's folder; raises this project's exceptions."""
    try:
        path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        (path / ROCKSDB_FOLDER).mkdir(mode=_PRIVATE, exist_ok=True)
        return Rdict(
            str(path / ROCKSDB_FOLDER),
            _options(),
            column_families={family.value: _options() for family in Family},
            access_type=access,
        )
    except Exception as error:
        raise explained(path, error) from error


def drop_families(path: Path, families: Iterable[Family]) -> None:
    """Empties families of a store that no process has open, without reading them."""
    opened = open_families(path, AccessType.read_write())
    try:
        for family in families:
            opened.drop_column_family(family.value)
    except Exception as error:
        raise explained(path, error) from error
    finally:
        opened.close()


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
