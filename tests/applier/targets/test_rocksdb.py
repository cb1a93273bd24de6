"""The embedded target: rows, checkpoint, relay queue and history change together."""

import json
import threading
from itertools import permutations

import pytest

from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.applier.queue.row_parts import Part
from groupcert.applier.queue.target_progress import Checkpoint, TargetProgress
from groupcert.applier.targets.rocksdb import (
    CHECKPOINT_KEY,
    ROW_PREFIX,
    AppliedInterval,
    RocksDbTarget,
    RowChanges,
    RowsSnapshot,
    applied_intervals,
)
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.storage.store import Batch, Family, Store
from tests.applier.histories import (
    GROUP,
    VIEW_CHANGE,
    Step,
    decode,
    entries_of,
    remote,
    serial_rows,
)
from tests.applier.scheme_driver import SOURCE, entry
from tests.stores import writing


def queued(store: Store, entries: list[RelayEntry]) -> RelayQueue:
    queue = RelayQueue(store)
    with writing(store) as batch:
        queue.append(batch, entries)
    queue.written()
    return queue


def commit(
    target: RocksDbTarget, progress: TargetProgress, tick: int, *groups: list[RelayEntry]
) -> Checkpoint:
    return commit_jobs(target, progress, tick, [Job(entries, started=1) for entries in groups])


def commit_jobs(
    target: RocksDbTarget, progress: TargetProgress, tick: int, jobs: list[Job[RowChanges]]
) -> Checkpoint:
    for job in jobs:
        job.execution = target.execute(job)
    target.commit(CommitGroup(tick, jobs), progress)
    return progress.checkpoint


def rows_of(snapshot: RowsSnapshot) -> dict[bytes, bytes]:
    return dict(snapshot.scan())


def test_a_group_leaves_the_rows_of_serial_execution_and_its_checkpoint(store: Store) -> None:
    entries = entries_of(remote(number % 4, number % 3) for number in range(15))
    target = RocksDbTarget(store, decode, queued(store, entries))
    assert target.checkpoint() is None
    checkpoint = commit(target, TargetProgress(Checkpoint()), 2, entries[:6], entries[6:])
    snapshot = target.open_snapshot()
    assert rows_of(snapshot) == serial_rows(entries)
    assert snapshot.version == 15
    assert target.checkpoint() == checkpoint


def test_executing_shows_nothing(store: Store) -> None:
    entries = entries_of([remote(1)])
    target = RocksDbTarget(store, decode, queued(store, entries))
    target.execute(Job(entries))
    assert rows_of(target.open_snapshot()) == {}


def test_a_snapshot_stays_as_it_was(store: Store) -> None:
    entries = entries_of([remote(1), remote(1)])
    target = RocksDbTarget(store, decode, queued(store, entries))
    progress = TargetProgress(Checkpoint())
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
    commit(target, TargetProgress(Checkpoint()), 2, entries)
    snapshot = target.open_snapshot()
    assert [key for key, _ in snapshot.scan(b"row/2", b"row/7")] == [b"row/3", b"row/5"]
    assert [key for key, _ in snapshot.scan(b"row/2", limit=1)] == [b"row/3"]
    assert list(snapshot.scan(b"row/8")) == []


def test_the_relay_queue_loses_what_was_executed(store: Store) -> None:
    entries = entries_of([remote(1), remote(2)])
    queue = queued(store, entries)
    target = RocksDbTarget(store, decode, queue)
    progress = TargetProgress(Checkpoint())
    commit(target, progress, 2, entries[:1])
    assert queue.length == 2
    commit(target, progress, 3, entries[1:])
    assert queue.length == 0
    assert list(RelayQueue(store).load()) == []


def test_history_tells_when_each_transaction_ran(store: Store) -> None:
    local = Step(frozenset({9}), local=True)
    entries = entries_of([remote(1), local, VIEW_CHANGE, remote(2)])
    clock = iter((1_000, 1_001, 1_002))
    target = RocksDbTarget(
        store, decode, queued(store, entries), record_history=True, now_us=lambda: next(clock)
    )
    progress = TargetProgress(Checkpoint())
    commit(target, progress, 2, entries[:1], entries[1:2])
    commit(target, progress, 3, entries[2:3])
    commit(target, progress, 4, entries[3:])
    assert list(applied_intervals(store)) == [
        AppliedInterval(1, started=1, committed=2, committed_us=1_000, worker=0),
        AppliedInterval(2, started=0, committed=2, committed_us=1_000),
        AppliedInterval(3, started=1, committed=4, committed_us=1_002, worker=0),
    ]


def test_history_tells_who_is_a_sibling_where_there_is_a_binary_log(store: Store) -> None:
    entries = entries_of([remote(1), remote(2), VIEW_CHANGE, remote(3), remote(4)])
    stamps = iter(([0, 0, 2, 0, 2],))
    target = RocksDbTarget(
        store, decode, record_history=True, on_commit=lambda *_: next(stamps, None)
    )
    progress = TargetProgress(Checkpoint())
    commit(target, progress, 2, entries)
    siblings = [(each.commit_parent, each.commit_id) for each in applied_intervals(store)]
    assert siblings == [(0, 1), (0, 1), (2, 3), (2, 3)]
    commit(target, progress, 3, entries_of([remote(1)]))
    *_, last = applied_intervals(store)
    assert (last.commit_parent, last.commit_id) == (-1, -1)


def test_history_tells_when_an_execution_ended(store: Store) -> None:
    """Also beside the commit parents; transactions of one job share its times, and one that its
    client executed has none.
    """
    local = Step(frozenset({9}), local=True)
    first, local_one, second, third = entries_of([remote(1), local, remote(2), remote(3)])
    stamps = iter(([0, 1, 1, 1],))
    target = RocksDbTarget(
        store, decode, record_history=True, on_commit=lambda *_: next(stamps, None)
    )
    progress = TargetProgress(Checkpoint())
    both: list[Job[RowChanges]] = [
        Job([first, local_one], started_us=5, executed_us=7),
        Job([second, third], started_us=6, executed_us=9),
    ]
    commit_jobs(target, progress, 2, both)
    commit_jobs(target, progress, 3, [Job(entries_of([remote(1)]), started_us=8, executed_us=11)])
    ran = [(each.started_us, each.executed_us) for each in applied_intervals(store)]
    assert ran == [(5, 7), (0, 0), (6, 9), (6, 9), (8, 11)]
    parents = [each.commit_parent for each in applied_intervals(store)]
    assert parents == [0, 1, 1, 1, -1]


def test_a_batch_that_cannot_be_written_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = entries_of([remote(1)])
    target = RocksDbTarget(store, decode, queued(store, entries))

    def refuse(_: Batch) -> None:
        raise OSError("no")

    monkeypatch.setattr(store, "write", refuse)
    with pytest.raises(OSError, match="no"):
        commit(target, TargetProgress(Checkpoint()), 2, entries)
    assert rows_of(target.open_snapshot()) == {}
    assert target.checkpoint() is None
    assert list(RelayQueue(store).load()) == [entries]


def test_the_parts_of_a_transaction_are_the_whole_by_table_and_by_slot(store: Store) -> None:
    keys = [*range(20)]
    rows = [(f"{table}/{key}", f"{key}") for table in ("a.t", "a.u", "b.t") for key in keys]
    one = entry(1, payload=json.dumps([*rows, ("a.t/7", None)][1:]).encode())
    whole = RocksDbTarget(store, decode).execute(Job([one]))
    divisions = [[Part(table=table) for table in ("a.t", "a.u", "b.t")]]
    divisions += [[Part(slot=slot, slots=slots) for slot in range(slots)] for slots in (1, 4)]
    target = RocksDbTarget(store, decode)
    for parts in divisions:
        jobs: list[Job[RowChanges]] = [Job([one], part=part, parts=len(parts)) for part in parts]
        executed = [target.execute(job) for job in jobs]
        assert sum(map(len, executed)) == len(whole)
        assert {key: value for each in executed for key, value in each.items()} == whole
        assert all(executed)


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("deleting", range(4))
def test_what_keeps_the_newest_ends_as_serial_execution_does(
    store: Store, order: tuple[int, ...], deleting: int
) -> None:
    entries = [
        entry(version, payload=json.dumps([("a.t/1", row), (f"a.t/{version}0", "x")]).encode())
        for version in (1, 2, 3)
        for row in [None if version == deleting else f"{version}"]
    ]
    target = RocksDbTarget(store, decode)
    progress = TargetProgress(Checkpoint())
    for tick, index in enumerate(order, 2):
        commit_jobs(target, progress, tick, [Job([entries[index]], keeps_newest=True)])
    assert rows_of(target.open_snapshot()) == serial_rows(entries)


class Refused(Exception):
    """A write that is refused."""


def test_what_is_added_on_commit_is_in_the_same_batch(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(batch: Batch, group: CommitGroup[RowChanges], checkpoint: Checkpoint) -> None:
        batch.put(Family.META, b"note", b"%d" % checkpoint.version)
        assert store.get(Family.META, b"note") == (b"1" if group.tick > 2 else None)

    def refuse(_: Batch) -> None:
        raise Refused

    target = RocksDbTarget(store, decode, on_commit=note)
    progress = TargetProgress(Checkpoint())
    entries = entries_of([remote(1), remote(1), remote(2)])
    first = commit(target, progress, 2, entries[:1])
    with monkeypatch.context() as patched:
        patched.setattr(store, "write", refuse)
        with pytest.raises(Refused):
            commit(target, progress, 3, entries[1:2])
    assert store.get(Family.META, b"note") == b"1"
    assert target.checkpoint() == progress.checkpoint == first
    checkpoint = commit(target, progress, 4, entries[2:])
    assert store.get(Family.META, b"note") == b"3"
    assert str(checkpoint.gtid_executed) == f"{GROUP}:1:3", "what was refused is not executed"


def test_whoever_commits_when_the_checkpoint_is_that_of_the_rows(store: Store) -> None:
    target = RocksDbTarget(store, decode)
    progress = TargetProgress(Checkpoint())
    ended = threading.Event()
    differences = []

    def commit_some(first: int) -> None:
        for number in range(first, 201, 4):
            row = json.dumps([(f"a.t/{number}", "x")]).encode()
            commit(target, progress, number, [entry(number, payload=row)])

    def compare() -> None:
        while not ended.is_set():
            data = store.snapshot(Family.DATA)
            encoded = data.get(CHECKPOINT_KEY)
            found = [int(key.rpartition(b"/")[2]) for key, _ in data.scan(ROW_PREFIX)]
            executed = Checkpoint.decode(encoded).gtid_executed if encoded else GtidSet()
            if executed != GtidSet.of(*(Gtid(SOURCE, number) for number in found)):
                differences.append((found, executed))

    reader = threading.Thread(target=compare)
    writers = [threading.Thread(target=commit_some, args=(first,)) for first in range(1, 5)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    reader.join()
    assert not differences
    checkpoint = target.checkpoint()
    assert checkpoint
    assert str(checkpoint.gtid_executed) == f"{SOURCE}:1-200"
