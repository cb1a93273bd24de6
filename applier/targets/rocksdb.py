"""The embedded target: rows in the member's own RocksDB, beside relay queue and certification info.

The rule it keeps: rows and checkpoint lie in one column family, written by the same batches. So one
RocksDB snapshot has rows and the version that they are of, and readers never see half a group.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from applier.checkpoint import Checkpoint, version_of
from applier.job import CommitGroup
from applier.relay_queue import RelayEntry, RelayQueue
from certifier.store import Batch, Family, Store, StoreSnapshot, integer_key

CHECKPOINT_KEY = b"\x00checkpoint"
ROW_PREFIX = b"\x01"
_ROWS_END = b"\x02"

Decode = Callable[[bytes], tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]]
"""Reads a payload: the keys to put, their values, the keys to delete; none stands in two places."""


RowChanges = Mapping[bytes, bytes | None]
"""A transaction ready to commit: keys as they are stored, with their values; None deletes."""


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
    """A `Target` over a member's store; it alone writes the family DATA."""

    def __init__(
        self,
        store: Store,
        decode: Decode,
        relay_queue: RelayQueue,
        *,
        record_history: bool = False,
    ) -> None:
        """`record_history`: keep when each transaction ran, for `applied_intervals`; it grows by
        16 bytes a transaction and is never purged.
        """
        self._store = store
        self._decode = decode
        self._relay_queue = relay_queue
        self._record_history = record_history

    def execute(self, entry: RelayEntry) -> RowChanges:
        """Reads the row changes."""
        if not entry.payload:
            return {}
        put_keys, put_values, delete_keys = self._decode(entry.payload)
        changes: dict[bytes, bytes | None] = {
            ROW_PREFIX + key: value for key, value in zip(put_keys, put_values, strict=True)
        }
        for key in delete_keys:
            changes[ROW_PREFIX + key] = None
        return changes

    def commit(self, group: CommitGroup[RowChanges], checkpoint: Checkpoint) -> None:
        """Writes the group's rows, the checkpoint, the relay queue's and the history's part as one
        batch; of several changes of a row only the last.

        Raises:
            DiskFull: nothing of it was written.
        """
        changes: dict[bytes, bytes | None] = {}
        for job in group.jobs:
            for execution in job.executions:
                changes.update(execution)
        batch = self._store.batch()
        batch.apply(Family.DATA, changes)
        batch.put(Family.DATA, CHECKPOINT_KEY, checkpoint.encode())
        self._relay_queue.discard(batch, checkpoint.position)
        if self._record_history:
            _record(batch, group)
        self._store.write(batch)

    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint beside the rows."""
        encoded = self._store.get(Family.DATA, CHECKPOINT_KEY)
        return Checkpoint.decode(encoded) if encoded else None

    def open_snapshot(self) -> RowsSnapshot:
        """The rows as they are now."""
        return RowsSnapshot(self._store.snapshot(Family.DATA))


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
