"""The embedded target: rows in RocksDB, at a member beside relay queue and certification info.

Rows and checkpoint are in one column family, written by the same batches. So one RocksDB snapshot
has the rows and their version, and readers never see half a group.

The rows of a large transaction are written to files by the worker that executes it, and these are
ingested when it commits: RocksDB's binding lets no other thread run during a write, which would
take seconds; an ingestion takes milliseconds. The batch with the checkpoint follows. Until then
readers get the rows as they were before. After a crash in between they get none until the group,
which is the next one in the order, has been executed again.
"""

import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from ...certifier.storage.store import (
    Batch,
    Family,
    RowsFile,
    Store,
    StoreSnapshot,
    integer_key,
)
from ..queue.fragment_references import FragmentSet, is_reference
from ..queue.job import CommitGroup, Job
from ..queue.relay_group import RelayEntry, payloads_of
from ..queue.relay_queue import RelayQueue
from ..queue.siblings import commit_ids, commit_parents
from ..queue.target_progress import Checkpoint, LastError, TargetProgress, version_of
from .ingested_files import RowsFiles

CHECKPOINT_KEY = b"\x00checkpoint"
ROW_PREFIX = b"\x01"
UNFINISHED_KEY = b"unfinished group"
"""The key with the position of a group that is being written in several batches."""
ERROR_KEY = b"last error"
"""The key of the error that a replica ended with."""
LARGE: "RowChanges" = {}
"""The execution of a job with a large transaction."""
_ROWS_END = b"\x02"
_INTERVAL_HEADER = struct.Struct("<QB")
"""The time of the commit, and which columns there are."""
_COLUMNS = "QQQiQ"
"""Versions, ticks and times of the start, workers, times when executions ended."""
_WITHOUT_PARENTS, _WITH_PARENTS = 2, 3
"""The second has another column: commit parents, if the binary log has stamped the group."""
_VERSION_PREFIX = _ROWS_END
"""The prefix of a row's version: that of its last change, kept when the row is deleted."""

Rows = tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]
"""The keys to put, their values, the keys to delete; no key occurs twice."""

Decode = Callable[[bytes], Rows]
"""Reads a payload."""

DecodePuts = Callable[[Sequence[bytes]], Rows | None]
"""Reads payloads that delete no row; returns None if one does, or cannot be read."""

MakeFiles = Callable[[bytes], list[RowsFile] | None]
"""Returns files of the rows that a payload refers to; None if the rows are in no order."""

DecodeLarge = Callable[[bytes], Iterator[Rows]]
"""Yields the rows that a payload refers to, piece by piece; raises if they are not what was
sent.
"""

RowChanges = Mapping[bytes, bytes | None]
"""A job ready to commit: keys as they are stored, with their values; None deletes."""

OnCommit = Callable[[Batch, CommitGroup[RowChanges], Checkpoint], Sequence[int] | None]
"""Adds to a group's batch what must be as durable as its rows. If that is a binary log, it returns
for each entry the version that its `last_committed` there means.
"""


class AppliedInterval(NamedTuple):
    """The time in which a transaction ran, in ticks of the coordinator; `started` 0: its client had
    executed it before. Times are in microseconds since 1970, 0: unknown; `worker` -1: none.
    `commit_parent` and `commit_id` are those of the binary log, -1: none.
    `executed_us`: when its execution ended; from then on it waited for its turn to commit.
    """

    version: int
    started: int
    committed: int
    started_us: int = 0
    committed_us: int = 0
    worker: int = -1
    executed_us: int = 0
    commit_parent: int = -1
    commit_id: int = -1


class RowsSnapshot:
    """The rows as they were after transaction `version`, whatever is committed later."""

    __slots__ = ("_snapshot", "version")

    def __init__(self, snapshot: StoreSnapshot) -> None:
        self._snapshot = snapshot
        encoded = snapshot.get(CHECKPOINT_KEY)
        self.version = version_of(encoded) if encoded else 0

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a row."""
        return self._snapshot.get(ROW_PREFIX + key)

    def close(self) -> None:
        """Lets go of the store: nothing is read any more."""
        del self._snapshot

    def scan(
        self, start: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields rows from `start` up to, not including, `end` (None: the last), at most `limit`,
        in byte order.
        """
        stop = _ROWS_END if end is None else ROW_PREFIX + end
        for key, value in islice(self._snapshot.scan(ROW_PREFIX + start), limit):
            if key >= stop:
                return
            yield key[1:], value


class RocksDbTarget:
    """A `Target` over a store; it alone writes the family DATA."""

    def __init__(
        self,
        store: Store,
        decode: Decode,
        relay_queue: RelayQueue | None = None,
        *,
        record_history: bool = False,
        on_commit: OnCommit | None = None,
        decode_puts: DecodePuts | None = None,
        decode_large: DecodeLarge | None = None,
        make_files: MakeFiles | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """Creates the target.

        `relay_queue`: executed entries are discarded from it with the commit. `record_history`:
        keep each transaction's `AppliedInterval`, in 44 bytes; nothing here purges them.
        `on_commit` is called by the thread that commits, before the write. `decode_puts`: reads
        many payloads at once, where it can. `decode_large`: reads large transactions; `make_files`:
        returns files that were made ahead. `now_us`: a clock.
        """
        self._store = store
        self._decode = decode
        self._relay_queue = relay_queue
        self._record_history = record_history
        self._on_commit = on_commit
        self._decode_puts = decode_puts
        self._decode_large = decode_large
        self._make_ahead = make_files
        self._now_us = now_us
        self._files: dict[bytes, list[RowsFile]] = {}
        self._views = threading.Lock()
        self._shown: StoreSnapshot | None = None
        self._unfinished = int(store.get(Family.META, UNFINISHED_KEY) or b"-1")

    def translate(self, entries: Sequence[RelayEntry]) -> None:
        """Does nothing: to execute is to translate."""

    def execute(self, job: Job[RowChanges]) -> RowChanges:
        """Decodes the row changes and returns the last one of each row."""
        payloads = payloads_of(job.entries)
        if any(map(is_reference, payloads)):
            self._make_files(job)
            return LARGE
        puts = self._decode_puts(payloads) if self._decode_puts and len(payloads) > 1 else None
        changes = changes_of(puts) if puts else self._changes(job)
        if (part := job.part) is not None:
            changes = {key: value for key, value in changes.items() if part.takes(key[1:])}
        return changes

    def _changes(self, job: Job[RowChanges]) -> dict[bytes, bytes | None]:
        """Returns the last change of each row of a job's entries, one after the other."""
        changes: dict[bytes, bytes | None] = {}
        for entry in job.entries:
            try:
                changes |= changes_of(self._decode(entry.payload)) if entry.payload else {}
            except Exception as error:
                error.add_note(f"executing {entry.gtid} at position {entry.position}")
                raise
        return changes

    def commit(self, group: CommitGroup[RowChanges], progress: TargetProgress) -> None:
        """Writes the group's rows, the checkpoint, and its changes of relay queue and history as
        one batch; of several changes of a row only the last. It is not durable yet.

        Raises:
            DiskFull: nothing of it was written.
        """
        with progress.advancing(group) as checkpoint:
            batch = self._store.batch()
            if is_large(group):
                self._write_rows(group, checkpoint)
            else:
                batch.apply(Family.DATA, _folded(list(map(self._changed, group.jobs))))
            batch.put(Family.DATA, CHECKPOINT_KEY, checkpoint.encode())
            if self._relay_queue:
                self._relay_queue.discard(batch, checkpoint.position)
            logged = self._on_commit(batch, group, checkpoint) if self._on_commit else None
            if self._record_history:
                _record(batch, group, self._now_us(), logged)
            # With this batch the group is whole that batches before it had begun, in this process
            # or one before.
            ends = 0 <= self._unfinished <= checkpoint.position
            if ends:
                batch.delete(Family.META, UNFINISHED_KEY)
            self._store.write(batch)
            if ends:
                # After the write: whoever opens a snapshot before it gets the rows as they were.
                self._unfinished, self._shown = -1, None

    @property
    def is_unfinished(self) -> bool:
        """True if an earlier process ended while it wrote a group: the rows are of no version."""
        return self._unfinished >= 0 and self._shown is None

    def abandon(self, job: Job[RowChanges]) -> None:
        """Forgets the files of large transactions; they are made again, or removed at a start."""
        for entry in job.entries:
            self._files.pop(entry.payload, None)

    def save(self, checkpoint: Checkpoint) -> None:
        """Writes the checkpoint's error, if there is one: the rest is written with each commit."""
        if checkpoint.error:
            batch = self._store.batch()
            batch.put(Family.META, ERROR_KEY, checkpoint.error.encode())
            self._store.write(batch)

    def close(self) -> None:
        """Releases the snapshot that readers got; the owner of the store closes it."""
        self._shown = None

    def checkpoint(self) -> Checkpoint | None:
        """Returns the checkpoint beside the rows, and the error that was saved last."""
        encoded = self._store.get(Family.DATA, CHECKPOINT_KEY)
        checkpoint = Checkpoint.decode(encoded) if encoded else None
        if error := self._store.get(Family.META, ERROR_KEY):
            return replace(checkpoint or Checkpoint(), error=LastError.decode(error)).settled()
        return checkpoint

    def open_snapshot(self) -> RowsSnapshot:
        """Returns a snapshot of the rows; must not be called while the target `is_unfinished`."""
        assert not self.is_unfinished, "rows of no version"
        with self._views:
            return RowsSnapshot(self._shown or self._store.snapshot(Family.DATA))

    def _write_rows(self, group: CommitGroup[RowChanges], checkpoint: Checkpoint) -> None:
        """Writes the rows of a group batch by batch, and leaves the last batch to the caller."""
        if self._unfinished < 0:
            with self._views:
                # Before the first row: readers get this until the group is whole. After a crash in
                # its middle there is no such state to show.
                self._shown = self._store.snapshot(Family.DATA)
        if self._unfinished < checkpoint.position:
            batch = self._store.batch()
            # Before the first row, too: a process that finds this key knows that the rows are of no
            # version.
            batch.put(Family.META, UNFINISHED_KEY, b"%d" % checkpoint.position)
            self._store.write(batch)
            self._unfinished = checkpoint.position
        for job in group.jobs:
            if job.execution is not LARGE:
                self._write_some(job.execution or {})
                continue
            for entry in job.entries:
                if not is_reference(entry.payload):
                    rows = self._decode(entry.payload) if entry.payload else ((), (), ())
                    self._write_some(changes_of(rows))
                elif files := self._files.pop(entry.payload, None):
                    for file in files:
                        self._store.ingest(Family.DATA, file)
                else:
                    for rows in self._pieces(entry.payload):
                        self._write_some(changes_of(rows))

    def _pieces(self, payload: bytes) -> Iterator[Rows]:
        assert self._decode_large, "large transactions, and nothing that reads them"
        return self._decode_large(payload)

    def _make_files(self, job: Job[RowChanges]) -> None:
        """Writes the rows of the job's large transactions to files."""
        for entry in job.entries:
            if is_reference(entry.payload) and (files := self._files_of(entry.payload)):
                self._files[entry.payload] = files

    def _files_of(self, payload: bytes) -> list[RowsFile] | None:
        if self._make_ahead:
            return self._make_ahead(payload)
        files = RowsFiles(self._store, str(FragmentSet.of(payload).number))
        for rows in self._pieces(payload):
            files.add(changes_of(rows))
        return files.finish()

    def _write_some(self, changes: RowChanges) -> None:
        """Writes rows that readers do not see yet."""
        batch = self._store.batch()
        batch.apply(Family.DATA, changes)
        self._store.write(batch)

    def _changed(self, job: Job[RowChanges]) -> RowChanges:
        """Returns the changes that a job commits."""
        execution = job.execution or {}
        return self._newest(job, execution) if job.keeps_newest else execution

    def _newest(self, job: Job[RowChanges], execution: RowChanges) -> RowChanges:
        """Returns the changes of rows that no later transaction has changed, and their versions
        (WL#4648 C0: stale changes are discarded).
        """
        # Big-endian, so that the bytes compare as the numbers do.
        version = job.entries[-1].version.to_bytes(8, "big")
        newest: dict[bytes, bytes | None] = {}
        for key, value in execution.items():
            version_key = _VERSION_PREFIX + key[1:]
            if (self._store.get(Family.DATA, version_key) or b"") < version:
                newest[key] = value
                newest[version_key] = version
        return newest


def is_large(group: CommitGroup[RowChanges]) -> bool:
    """Returns whether a group has a large transaction, whose commit is slow."""
    return any(job.execution is LARGE for job in group.jobs)


def _folded(parts: Sequence[RowChanges]) -> RowChanges:
    """Returns the last change of each row."""
    if len(parts) == 1:
        return parts[0]
    changes: dict[bytes, bytes | None] = {}
    for part in parts:
        changes.update(part)
    return changes


def changes_of(rows: Rows) -> dict[bytes, bytes | None]:
    """Returns rows as they are stored."""
    put_keys, put_values, delete_keys = rows
    changes: dict[bytes, bytes | None] = dict(
        zip([ROW_PREFIX + key for key in put_keys], put_values, strict=True)
    )
    if delete_keys:
        changes.update((ROW_PREFIX + key, None) for key in delete_keys)
    return changes


def applied_intervals(store: Store) -> Iterator[AppliedInterval]:
    """Yields the interval of each transaction, in the order of versions; view changes have no
    version of their own and are left out.
    """
    for key, value in store.scan(Family.HISTORY):
        yield from intervals_of(key, value)


def intervals_of(key: bytes, value: bytes) -> Iterator[AppliedInterval]:
    """Yields the intervals of one commit group's transactions."""
    tick = int.from_bytes(key, "big")
    committed_us, which = _INTERVAL_HEADER.unpack_from(value)
    kinds = _COLUMNS + "Q" * (which == _WITH_PARENTS)
    count = (len(value) - _INTERVAL_HEADER.size) // struct.calcsize(f"={kinds}")
    layout = "=" + "".join(f"{count}{kind}" for kind in kinds)
    numbers = struct.unpack_from(layout, value, _INTERVAL_HEADER.size)
    columns = [numbers[begin : begin + count] for begin in range(0, len(numbers), count)]
    if which == _WITH_PARENTS:
        columns.append(tuple(commit_ids(columns[0], columns[-1])))
    for version, started, started_us, worker, *log in zip(*columns, strict=True):
        yield AppliedInterval(version, started, tick, started_us, committed_us, worker, *log)


def _record(
    batch: Batch,
    group: CommitGroup[RowChanges],
    committed_us: int,
    last_committed: Sequence[int] | None,
) -> None:
    """Adds the intervals of the group's transactions, in columns."""
    versions, starts, workers = array("Q"), array("Q"), array("i")
    times, ends = array("Q"), array("Q")
    for job in group.jobs:
        for entry in job.entries:
            if entry.gtid:
                versions.append(entry.version)
                starts.append(0 if entry.local else job.started)
                times.append(0 if entry.local else job.started_us)
                ends.append(0 if entry.local else job.executed_us)
                workers.append(-1 if entry.local else job.worker)
    if not versions:
        return
    columns = [versions, starts, times, workers, ends]
    which = _WITHOUT_PARENTS
    if last_committed is not None:
        entries = [entry for job in group.jobs for entry in job.entries]
        parents = commit_parents(entries, last_committed)
        own = [parent for parent, entry in zip(parents, entries, strict=True) if entry.gtid]
        columns.append(array("Q", own))
        which = _WITH_PARENTS
    header = _INTERVAL_HEADER.pack(committed_us, which)
    batch.put(Family.HISTORY, integer_key(group.tick), b"".join((header, *columns)))
