"""The embedded target: rows, checkpoint, relay queue and history change together."""

import pytest

from applier.checkpoint import Checkpoint, Progress
from applier.job import CommitGroup, Job
from applier.relay_queue import RelayEntry, RelayQueue
from applier.targets.rocksdb import (
    AppliedInterval,
    RocksDbTarget,
    RowChanges,
    RowsSnapshot,
    applied_intervals,
)
from certifier.store import Batch, Store
from tests.applier.histories import (
    VIEW_CHANGE,
    Step,
    decode,
    entries_of,
    remote,
    serial_rows,
)


def queued(store: Store, entries: list[RelayEntry]) -> RelayQueue:
    queue = RelayQueue(store)
    batch = store.batch()
    queue.append(batch, entries)
    store.write(batch)
    return queue


def commit(
    target: RocksDbTarget, progress: Progress, tick: int, *groups: list[RelayEntry]
) -> Checkpoint:
    jobs: list[Job[RowChanges]] = [
        Job(entries, 1, executions=[target.execute(entry) for entry in entries])
        for entries in groups
    ]
    group = CommitGroup(tick, jobs)
    checkpoint = progress.advance(group)
    target.commit(group, checkpoint)
    return checkpoint


def rows_of(snapshot: RowsSnapshot) -> dict[bytes, bytes]:
    return dict(snapshot.scan())


def test_a_group_leaves_the_rows_of_serial_execution_and_its_checkpoint(store: Store) -> None:
    entries = entries_of(remote(number % 4, number % 3) for number in range(15))
    target = RocksDbTarget(store, decode, queued(store, entries))
    assert target.checkpoint() is None
    checkpoint = commit(target, Progress(Checkpoint()), 2, entries[:6], entries[6:])
    snapshot = target.open_snapshot()
    assert rows_of(snapshot) == serial_rows(entries)
    assert snapshot.version == 15
    assert target.checkpoint() == checkpoint


def test_executing_shows_nothing(store: Store) -> None:
    entries = entries_of([remote(1)])
    target = RocksDbTarget(store, decode, queued(store, entries))
    target.execute(entries[0])
    assert rows_of(target.open_snapshot()) == {}


def test_a_snapshot_stays_as_it_was(store: Store) -> None:
    entries = entries_of([remote(1), remote(1)])
    target = RocksDbTarget(store, decode, queued(store, entries))
    progress = Progress(Checkpoint())
    empty = target.open_snapshot()
    commit(target, progress, 2, entries[:1])
    first = target.open_snapshot()
    commit(target, progress, 3, entries[1:])
    assert (empty.version, empty.get(b"row/1")) == (0, None)
    assert (first.version, first.get(b"row/1")) == (1, b"1")
    assert target.open_snapshot().get(b"row/1") == b"2"


def test_a_scan_has_its_range_and_limit(store: Store) -> None:
    entries = entries_of([remote(1, 3, 5, 7)])
    target = RocksDbTarget(store, decode, queued(store, entries))
    commit(target, Progress(Checkpoint()), 2, entries)
    snapshot = target.open_snapshot()
    assert [key for key, _ in snapshot.scan(b"row/2", b"row/7")] == [b"row/3", b"row/5"]
    assert [key for key, _ in snapshot.scan(b"row/2", limit=1)] == [b"row/3"]
    assert list(snapshot.scan(b"row/8")) == []


def test_the_relay_queue_loses_what_was_executed(store: Store) -> None:
    entries = entries_of([remote(1), remote(2)])
    queue = queued(store, entries)
    target = RocksDbTarget(store, decode, queue)
    progress = Progress(Checkpoint())
    commit(target, progress, 2, entries[:1])
    assert queue.length == 2
    commit(target, progress, 3, entries[1:])
    assert queue.length == 0
    assert list(RelayQueue(store).load()) == []


def test_history_tells_when_each_transaction_ran(store: Store) -> None:
    local = Step(frozenset({9}), local=True)
    entries = entries_of([remote(1), local, VIEW_CHANGE, remote(2)])
    target = RocksDbTarget(store, decode, queued(store, entries), record_history=True)
    progress = Progress(Checkpoint())
    commit(target, progress, 2, entries[:1], entries[1:2])
    commit(target, progress, 3, entries[2:3])
    commit(target, progress, 4, entries[3:])
    assert list(applied_intervals(store)) == [
        AppliedInterval(version=1, started=1, committed=2),
        AppliedInterval(version=2, started=0, committed=2),
        AppliedInterval(version=3, started=1, committed=4),
    ]


def test_a_batch_that_cannot_be_written_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = entries_of([remote(1)])
    target = RocksDbTarget(store, decode, queued(store, entries))

    def refuse(_: Batch) -> None:
        raise OSError("no")

    monkeypatch.setattr(store, "write", refuse)
    with pytest.raises(OSError, match="no"):
        commit(target, Progress(Checkpoint()), 2, entries)
    assert rows_of(target.open_snapshot()) == {}
    assert target.checkpoint() is None
    assert list(RelayQueue(store).load()) == [entries]
