"""The binary log of a member: its transactions in the order of its commits, in its own store.

The rule it keeps: a group commit's part of the log is in the batch that has its rows. So log and
rows need no two-phase commit: a crash leaves a transaction in both or in neither. Keys are (file,
bytes of the file before it), so that a file has its header at 0 and its size after its last key;
files are logical, and a member begins one at each start. A file has only the reference of a large
transaction; its fragments count as bytes of the file and are removed with it.

Source: WL#7165 (stamps), WL#6314 (commit parent), MDEV-4506 (group commit id).
Differs: a transaction's lock interval begins, at the member that took it, when its client asks for
the commit. At the others it begins at its snapshot, because certification has proved that no other
transaction wrote its rows in between. It is kept as a version, which is `max_committed_transaction`
on a scale that no rotation restarts. `prepare` is where the member passes it to its applier. The
group commit id is not the batch's, because a batch may also hold a transaction beside another that
has read it: only transactions of a batch that held all their locks at one time share an id. It is
the version of the first of these, which is unique in all files.

Where a server keeps the rows there is no such batch: the log follows the relay queue, which has all
that is visible until the log has it too, and notes how far it is.
"""

import json
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from ...applier.queue.fragment_references import changes_bytes, is_reference
from ...applier.queue.job import CommitGroup, Job
from ...applier.queue.relay_group import RelayGroup
from ...applier.queue.relay_queue import RelayQueue, decode, encode
from ...applier.queue.target_progress import Checkpoint
from ...applier.source.clock import SEQUENCE_NUMBER_MAX, SourceClock
from ...applier.targets.rocksdb import RowChanges
from ...certifier.errors import CorruptStore
from ...certifier.gtid import Gtid
from ...certifier.gtid_set import GtidSet
from ...certifier.storage.reading import Reads
from ...certifier.storage.store import Batch, Family, Store
from ..large_transactions.fragment_store import drop_kept, keep, names_of

MARK_BYTES = 1 << 20
"""Bytes between two positions of a file from which replicas may start to read."""
_KEY = struct.Struct(">QQ")
_COMMITTED_US = struct.Struct("<Q")
_OFFSET_MAX = 2**64 - 1
_FOLLOWED = b"binary log up to"
"""Key of the checkpoint up to which a log has followed the relay queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryLogOptions:
    """When a file ends, and how many files are kept; see the settings of a member."""

    file_bytes_max: int = 256 << 20
    files_max: int = 1_000
    """Each start of the member begins one: the bytes are the limit that counts."""
    retention_bytes: int = 4 << 30
    keeps_fragments: bool = True
    """Fragments of large transactions stay as long as files that refer to them do."""
    sequence_number_max: int = SEQUENCE_NUMBER_MAX
    """Transactions of a file, whose counters then begin again: what the stamps' 63 bits hold."""


@dataclass(slots=True, kw_only=True)
class BinaryLogFile:
    """One file. `previous_gtids`: GTIDs executed before it; `version`: how many transactions were;
    `first_gtid`: of its first transaction, if it has one.
    """

    number: int
    previous_gtids: GtidSet
    version: int
    created_us: int
    bytes: int
    first_gtid: str = ""


@dataclass(slots=True)
class BinaryLogCounters:
    """Transactions taken since the start, and the group commits that they were in."""

    commits: int = 0
    group_commits: int = 0


class StoredGroup(NamedTuple):
    """The value of one key: the header of a file, or a group commit. Its entries have the stamps of
    the log, and of their headers what the member knew before the commit.
    """

    key: bytes
    file: int
    header: BinaryLogFile | None
    entries: RelayGroup
    committed_us: int
    bytes: int


def key_of(file: int, offset: int = 0) -> bytes:
    """Returns the key of the value at an offset of a file."""
    return _KEY.pack(file, offset)


class BinaryLog:
    """The log of one member. `append` is for the thread that commits, the rest for any thread."""

    def __init__(self, store: Store, checkpoint: Checkpoint, options: BinaryLogOptions) -> None:
        """Opens the log, and begins a file after all that `checkpoint`, the rows', says.

        Raises:
            CorruptStore, UnsupportedFormat: what is there cannot be read.
            DiskFull: there is no space for a new file.
        """
        self.counters = BinaryLogCounters()
        self._store = store
        self._options = options
        self._lock = threading.RLock()
        self._clock = SourceClock(options.sequence_number_max)
        self._files = list(_stored_files(store))
        self._marks = [(key_of(file.number), file.previous_gtids) for file in self._files]
        self._executed = checkpoint.gtid_executed
        self._version = self._base = checkpoint.version
        self._position = checkpoint.position
        self._begin_alone()

    def append(
        self, batch: Batch, group: CommitGroup[RowChanges], checkpoint: Checkpoint
    ) -> list[int]:
        """Adds a group commit to the batch that will hold its rows too; `checkpoint` is the one
        after it. One thread at a time, in the order in which the batches are written.

        Returns:
            Of each entry the version that its `last_committed` stands for.
        """
        last_committed: list[int] = []
        entries = RelayGroup.joined([job.entries for job in group.jobs])
        with self._lock:
            if self._files[-1].bytes >= self._options.file_bytes_max:
                self._begin(batch)
            while len(entries) > self._clock.left:
                taken, entries = entries[: self._clock.left], entries[self._clock.left :]
                last_committed += self._write(batch, taken)
                self._executed = self._executed.copy()
                for entry in taken:
                    if entry.gtid is not None:
                        self._executed.add(entry.gtid)
                self._begin(batch)
            last_committed += self._write(batch, entries)
            self._executed = checkpoint.gtid_executed
            self._position = checkpoint.position
        return last_committed

    @classmethod
    def following(cls, store: Store, at_server: Checkpoint, options: BinaryLogOptions) -> Self:
        """Opens the log of a member whose rows a server keeps: behind what it has of the relay
        queue, or behind what the server has executed if it has followed none. `stop_following`
        comes before a run without it, in which the queue lets go of entries.
        """
        noted = store.get(Family.META, _FOLLOWED)
        return cls(store, Checkpoint.decode(noted) if noted else at_server, options)

    @staticmethod
    def stop_following(store: Store) -> None:
        """Has the next `following` begin behind what the server has executed then."""
        batch = store.batch()
        batch.delete(Family.META, _FOLLOWED)
        store.write(batch)

    def follow(self, queue: RelayQueue, position: int) -> Iterator[None]:
        """Adds what a relay queue has behind the log, up to `position`, which is visible: one of
        its groups at each step.
        """
        for group in queue.read(self.position):
            first = bisect_right(group.positions, self.position)
            entries = group[first : bisect_right(group.positions, position)]
            if not entries:
                return
            executed = self._executed.copy()
            for entry in entries:
                if entry.gtid is not None:
                    executed.add(entry.gtid)
            checkpoint = Checkpoint(
                version=entries[-1].version,
                position=entries[-1].position,
                gtid_executed=executed,
            )
            batch = self._store.batch()
            with self._lock:  # No file begins before what is in the last one is stored.
                self.append(batch, CommitGroup(checkpoint.tick, [Job(entries)]), checkpoint)
                batch.put(Family.META, _FOLLOWED, checkpoint.encode())
                self._store.write(batch)
            yield

    @property
    def position(self) -> int:
        """Position of the last entry, or of the checkpoint that the log began behind."""
        return self._position

    def end_statement(self) -> int:
        """Returns the version after which the lock interval of a transaction begins whose last
        statement ends now.
        """
        with self._lock:
            return self._base + self._clock.end_statement()

    def rotate(self, position: int) -> bool:
        """Begins a new file. Returns False, and does nothing, while a group is being written: more
        than `position`, which is committed, was appended.
        """
        with self._lock:
            if self._position > position:
                return False
            self._begin_alone()
            return True

    def purge(self, file: int, position: int) -> int | None:
        """Removes the files before `file`, but never the newest; returns how many. Returns None,
        and does nothing, while a group is being written, see `rotate`.
        """
        with self._lock:
            if self._position > position:
                return None
            count = sum(each.number < file for each in self._files[:-1])
            batch = self._store.batch()
            self._drop(batch, count)
            self._store.write(batch)
            return count

    @property
    def files(self) -> list[BinaryLogFile]:
        """The files, oldest first."""
        with self._lock:
            return list(self._files)

    def has_fragments_of(self, file: int) -> bool:
        """Returns whether the fragments that a file refers to have to be there."""
        return self._options.keeps_fragments and self.files[0].number <= file

    def place_of(self, executed: GtidSet) -> tuple[bytes, int] | None:
        """Returns the last known position before which there is nothing but `executed`, as a key,
        and its file; None if what is missing comes before the oldest file.
        """
        with self._lock:
            for key, gtids in reversed(self._marks):
                if gtids <= executed:
                    return key, _KEY.unpack(key)[0]
        return None

    def read(self, key: bytes) -> Iterator[StoredGroup]:
        """Yields the stored groups from a key on. The iterator holds the store open: drop it."""
        return stored_groups(self._store, key)

    def _write(self, batch: Batch, entries: RelayGroup) -> Iterable[int]:
        """Adds entries of one group to the newest file; see `append`."""
        if not entries:
            return ()
        file = self._files[-1]
        stamps = self._stamps(entries)
        value = encode(entries, stamps, _COMMITTED_US.pack(time.time_ns() // 1000))
        if file.bytes - _KEY.unpack(self._marks[-1][0])[1] >= MARK_BYTES:
            self._marks.append((key_of(file.number, file.bytes), self._executed))
        batch.put(Family.BINARY_LOG, key_of(file.number, file.bytes), value)
        file.bytes += len(value)
        if large := [*filter(is_reference, entries.payloads)]:
            if self._options.keeps_fragments:
                keep(batch, file.number, names_of(large))
            file.bytes += sum(map(changes_bytes, large))
        file.first_gtid = file.first_gtid or _first_gtid(entries)
        self._version = entries.versions[-1]
        base = self._base
        return [base + last for last in stamps[0]]

    def _stamps(self, entries: RelayGroup) -> tuple[list[int], list[int]]:
        """Returns the stamps of a group; view changes have none, and divide it."""
        clock, base = self._clock, self._base
        committed, numbers = [], []
        first = number = commits = groups = 0
        for version, source, locked, items in zip(
            entries.versions, entries.sources, entries.locked, entries.items, strict=True
        ):
            if not source:
                committed.append(0)
                numbers.append(0)
                first = 0
                continue
            read = None if locked is None else locked - base
            last_committed, number = clock.stamp(read, knows_rows=bool(items))
            assert number == version - base, f"version {version} is number {number} after {base}"
            committed.append(last_committed)
            numbers.append(number)
            commits += 1
            if last_committed >= first:
                first = number
                groups += 1
        if number:
            clock.commit(number)
        self.counters.commits += commits
        self.counters.group_commits += groups
        return committed, numbers

    def _begin_alone(self) -> None:
        batch = self._store.batch()
        self._begin(batch)
        self._store.write(batch)

    def _begin(self, batch: Batch) -> None:
        """Begins a file after all that was appended, and removes the oldest beyond the limit."""
        number = self._files[-1].number + 1 if self._files else 1
        file = BinaryLogFile(
            number=number,
            previous_gtids=self._executed,
            version=self._version,
            created_us=time.time_ns() // 1000,
            bytes=0,
        )
        header = _header(file)
        batch.put(Family.BINARY_LOG, key_of(number), header)
        file.bytes = len(header)
        self._files.append(file)
        self._marks.append((key_of(number), file.previous_gtids))
        self._base = self._version
        self._clock.rotate()
        kept_bytes = sum(each.bytes for each in self._files)
        count = max(0, len(self._files) - self._options.files_max)
        kept_bytes -= sum(each.bytes for each in self._files[:count])
        while kept_bytes > self._options.retention_bytes and count < len(self._files) - 1:
            kept_bytes -= self._files[count].bytes
            count += 1
        self._drop(batch, count)

    def _drop(self, batch: Batch, count: int) -> None:
        """Removes the oldest files."""
        assert 0 <= count < len(self._files), "the newest file is always kept"
        if count:
            del self._files[:count]
            first = key_of(self._files[0].number)
            batch.delete_range(Family.BINARY_LOG, key_of(0), first)
            drop_kept(self._store, batch, self._files[0].number)
            self._marks = [mark for mark in self._marks if mark[0] >= first]


def stored_groups(store: Reads, key: bytes = b"") -> Iterator[StoredGroup]:
    """Yields the stored groups of a member's binary log, from a key on.

    Raises CorruptStore, UnsupportedFormat: It cannot be read.
    """
    for found, value in store.scan(Family.BINARY_LOG, key):
        file, offset = _KEY.unpack(found)
        header, entries, committed_us = None, RelayGroup(), 0
        if offset:
            (committed_us,) = _COMMITTED_US.unpack_from(value)
            entries = decode(value[_COMMITTED_US.size :], str(store.path))
        else:
            header = _file(file, value, store)
        yield StoredGroup(found, file, header, entries, committed_us, len(value))


def _stored_files(store: Store) -> Iterator[BinaryLogFile]:
    """Yields the files that the store has, oldest first."""
    number = 0
    while True:
        records = store.scan(Family.BINARY_LOG, key_of(number))
        key, value = next(records, (b"", b""))
        if not key:
            return
        number, offset = _KEY.unpack(key)
        if offset:
            problem = f"file {number} of the binary log has no header"
            raise CorruptStore(path=str(store.path), problem=problem)
        file = _file(number, value, store)
        for later, group in records:
            if file.first_gtid or _KEY.unpack(later)[0] != number:
                break
            file.first_gtid = _first_gtid(decode(group[_COMMITTED_US.size :], str(store.path)))
        last = store.last(Family.BINARY_LOG, key_of(number, _OFFSET_MAX))
        assert last is not None, "a file without the header that was just read"
        file.bytes = _KEY.unpack(last[0])[1] + len(last[1])
        yield file
        number += 1


def _header(file: BinaryLogFile) -> bytes:
    """Returns the header of a file."""
    fields = {
        "previous_gtids": str(file.previous_gtids),
        "version": file.version,
        "created_us": file.created_us,
    }
    return json.dumps(fields).encode()


def _file(number: int, header: bytes, store: Reads) -> BinaryLogFile:
    """Returns a file known by its header alone."""
    try:
        fields = json.loads(header)
        return BinaryLogFile(
            number=number,
            previous_gtids=GtidSet.parse(fields["previous_gtids"]),
            version=fields["version"],
            created_us=fields["created_us"],
            bytes=len(header),
        )
    except (ValueError, KeyError) as error:
        problem = f"the header of file {number} of the binary log: {error!r}"
        raise CorruptStore(path=str(store.path), problem=problem) from error


def _first_gtid(entries: RelayGroup) -> str:
    gtids = zip(entries.sources, entries.numbers, strict=True)
    return next((str(Gtid(*gtid)) for gtid in gtids if gtid[0]), "")
