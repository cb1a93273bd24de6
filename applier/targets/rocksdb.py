"""The embedded target: rows in a RocksDB of one's own, at a member beside relay queue and
certification info.

The rule it keeps: rows and checkpoint lie in one column family, written by the same batches. So one
RocksDB snapshot has rows and the version that they are of, and readers never see half a group.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from applier.checkpoint import Checkpoint, Progress, version_of
from applier.job import CommitGroup, Job
from applier.relay_queue import RelayQueue
from certifier.store import Batch, Family, Store, StoreSnapshot, integer_key

CHECKPOINT_KEY = b"\x00checkpoint"
ROW_PREFIX = b"\x01"
_ROWS_END = b"\x02"
_VERSION_PREFIX = _ROWS_END
"""Before a row's key: the version of its last change, kept when it is deleted."""

Decode = Callable[[bytes], tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]]
"""Reads a payload: the keys to put, their values, the keys to delete; none stands in two places."""


RowChanges = Mapping[bytes, bytes | None]
"""A job ready to commit: keys as they are stored, with their values; None deletes."""

OnCommit = Callable[[Batch, CommitGroup[RowChanges], Checkpoint], None]
"""Adds to the batch of a group what has to be as durable as its rows."""


class AppliedInterval(NamedTuple):
    """When a transaction ran, in ticks of the coordinator; `started` 0: its client had executed it
    before.
    """

    version: int
    started: int
    committed: int


class RowsSnapshot:
    """The rows as they were after transaction `version`, whatever is committed later."""

    __slots__ = ("_snapshot", "version")

    def __init__(self, snapshot: StoreSnapshot) -> None:
        self._snapshot = snapshot
        encoded = snapshot.get(CHECKPOINT_KEY)
        self.version = version_of(encoded) if encoded else 0

    def get(self, key: bytes) -> bytes | None:
        """The value of a row."""
        return self._snapshot.get(ROW_PREFIX + key)

    def scan(
        self, start: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `start` up to, not including, `end` (None: the last), at most `limit`, in byte
        order.
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
    ) -> None:
        """`relay_queue`: where executed entries are discarded with the commit. `record_history`:
        keep when each transaction ran, for `applied_intervals`; it grows by 16 bytes a transaction
        and is never purged. `on_commit` is called by the thread that commits, before the write.
        """
        self._store = store
        self._decode = decode
        self._relay_queue = relay_queue
        self._record_history = record_history
        self._on_commit = on_commit

    def execute(self, job: Job[RowChanges]) -> RowChanges:
        """Reads the row changes; of several changes of a row only the last."""
        changes: dict[bytes, bytes | None] = {}
        for entry in job.entries:
            if not entry.payload:
                continue
            try:
                put_keys, put_values, delete_keys = self._decode(entry.payload)
            except Exception as error:
                error.add_note(f"executing {entry.gtid} at position {entry.position}")
                raise
            for key, value in zip(put_keys, put_values, strict=True):
                changes[ROW_PREFIX + key] = value
            for key in delete_keys:
                changes[ROW_PREFIX + key] = None
        if (part := job.part) is not None:
            changes = {key: value for key, value in changes.items() if part.takes(key[1:])}
        return changes

    def commit(self, group: CommitGroup[RowChanges], progress: Progress) -> None:
        """Writes the group's rows, the checkpoint, the relay queue's and the history's part as one
        batch; of several changes of a row only the last. It is not durable yet.

        Raises:
            DiskFull: nothing of it was written.
        """
        with progress.advancing(group) as checkpoint:
            changes: dict[bytes, bytes | None] = {}
            for job in group.jobs:
                execution = job.execution or {}
                changes.update(self._newest(job, execution) if job.keeps_newest else execution)
            batch = self._store.batch()
            batch.apply(Family.DATA, changes)
            batch.put(Family.DATA, CHECKPOINT_KEY, checkpoint.encode())
            if self._relay_queue:
                self._relay_queue.discard(batch, checkpoint.position)
            if self._record_history:
                _record(batch, group)
            if self._on_commit:
                self._on_commit(batch, group, checkpoint)
            self._store.write(batch)

    def abandon(self, job: Job[RowChanges]) -> None:
        """Nothing: an execution leaves no trace."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Nothing: it is written with each commit."""

    def close(self) -> None:
        """Nothing: the store is its owner's to close."""

    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint beside the rows."""
        encoded = self._store.get(Family.DATA, CHECKPOINT_KEY)
        return Checkpoint.decode(encoded) if encoded else None

    def open_snapshot(self) -> RowsSnapshot:
        """The rows as they are now."""
        return RowsSnapshot(self._store.snapshot(Family.DATA))

    def _newest(self, job: Job[RowChanges], execution: RowChanges) -> RowChanges:
        """The changes of rows that no later transaction has changed, and their version (WL#4648 C0:
        what is stale is discarded).
        """
        version = job.entries[-1].version.to_bytes(8, "big")
        newest: dict[bytes, bytes | None] = {}
        for key, value in execution.items():
            version_key = _VERSION_PREFIX + key[1:]
            if (self._store.get(Family.DATA, version_key) or b"") < version:
                newest[key] = value
                newest[version_key] = version
        return newest


def applied_intervals(store: Store) -> Iterator[AppliedInterval]:
    """When each transaction ran, in the order of versions; view changes have no version of their
    own and are left out.
    """
    for key, value in store.scan(Family.HISTORY):
        tick = int.from_bytes(key, "big")
        columns = array("Q", value)
        transactions = len(columns) // 2
        for version, started in zip(columns[:transactions], columns[transactions:], strict=True):
            yield AppliedInterval(version, started, tick)


def _record(batch: Batch, group: CommitGroup[RowChanges]) -> None:
    """Adds when the group's transactions started: a column of versions, and one of ticks."""
    versions, starts = array("Q"), array("Q")
    for job in group.jobs:
        for entry in job.entries:
            if entry.gtid:
                versions.append(entry.version)
                starts.append(0 if entry.local else job.started)
    if versions:
        batch.put(Family.HISTORY, integer_key(group.tick), (versions + starts).tobytes())
