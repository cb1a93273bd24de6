"""The applier with real threads over a real store: the rows of serial execution, in order, once.

What threads do when cannot be chosen, so these tests claim what holds whatever they do; the
interleavings themselves are chosen in `test_coordinator`.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, count, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from groupcert.applier.engine.applier import Applier, ApplierOptions, ApplierState
from groupcert.applier.engine.worker import WORKERS_MAX, WorkerState
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.applier.queue.target_progress import Checkpoint, Stage, TargetProgress
from groupcert.applier.schemes import Scheme
from groupcert.applier.schemes.logical_clock import LogicalClock
from groupcert.applier.targets.rocksdb import RocksDbTarget, RowChanges, applied_intervals
from groupcert.certifier.errors import CorruptStore, DiskFull, InvalidSetting
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.storage.store import Family, Store
from tests.applier.histories import (
    GROUP,
    VIEW_CHANGE,
    Step,
    decode,
    entries_of,
    must_not_overlap,
    remote,
    serial_rows,
    stamped,
)
from tests.stores import IDENTITY, put, writing

SECONDS_MAX = 60


class Member(NamedTuple):
    """What a member has around its applier."""

    store: Store
    queue: RelayQueue
    target: RocksDbTarget
    applier: Applier[RowChanges]
    committed: list[tuple[int, int]]
    errors: list[Exception]

    def deliver(self, entries: Sequence[RelayEntry]) -> None:
        """Stores entries, then hands them to the applier."""
        self.enqueue(entries)
        self.applier.append(entries)

    def enqueue(self, entries: Sequence[RelayEntry]) -> None:
        with writing(self.store) as batch:
            self.queue.append(batch, entries)
        self.queue.written()

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.target.open_snapshot().scan())


MEMBER = ApplierOptions(workers_hold_jobs=False)
"""As a member has it: the embedded target holds nothing between execution and commit."""


@contextmanager
def member(
    path: Path,
    workers: int,
    *,
    decode: Callable[[bytes], tuple[list[bytes], list[bytes], list[bytes]]] = decode,
    target_type: type[RocksDbTarget] = RocksDbTarget,
    scheme: Scheme | None = None,
    options: ApplierOptions = MEMBER,
    stops: bool = True,
) -> Iterator[Member]:
    """`stops`: whether all that was assigned is committed at the end."""
    with Store(path, IDENTITY) as store:
        queue = RelayQueue(store)
        target = target_type(store, decode, queue, record_history=True)
        committed: list[tuple[int, int]] = []
        errors: list[Exception] = []
        applier = Applier(
            target,
            scheme or LogicalClock(job_transactions_max=64),
            workers,
            lambda version, position: committed.append((version, position)),
            errors.append,
            options,
        )
        try:
            yield Member(store, queue, target, applier, committed, errors)
        finally:
            assert applier.stop(SECONDS_MAX) == stops


def random_history(seed: int, length: int) -> list[Step]:
    chance = random.Random(seed)
    kinds = [remote(*chance.choices(range(12), k=2)) for _ in range(length)]
    for index in chance.sample(range(length), length // 5):
        kinds[index] = Step(kinds[index].items, local=True)
    for index in chance.sample(range(length), length // 20):
        kinds[index] = chance.choice([VIEW_CHANGE, Step(frozenset())])
    return kinds


def portions(entries: Sequence[RelayEntry], seed: int) -> Iterator[Sequence[RelayEntry]]:
    chance = random.Random(seed)
    start = 0
    while start < len(entries):
        size = chance.choice((1, 2, 7, 64))
        yield entries[start : start + size]
        start += size


@pytest.mark.parametrize("workers", [0, 1, 2, 4, 16])
@pytest.mark.parametrize("job_transactions_max", [1, 64])
def test_rows_are_those_of_serial_execution_in_one_order_without_overlap(
    tmp_path: Path, workers: int, job_transactions_max: int
) -> None:
    history = stamped(random_history(workers, 150))
    entries = [one.entry for one in history]
    clock = LogicalClock(job_transactions_max=job_transactions_max)
    with member(tmp_path, workers, scheme=clock) as one:
        for portion in portions(entries, seed=workers):
            one.deliver(portion)
        assert one.applier.drain(SECONDS_MAX)
        assert one.errors == []
        assert one.rows() == serial_rows(entries)
        assert one.committed == sorted(set(one.committed))
        assert one.committed[-1] == (entries[-1].version, entries[-1].position)
        assert one.queue.length == 0
        status = one.applier.status()
        assert (status.length, status.committed_total) == (0, len(entries))
        assert workers or status.workers[0].executed_total == len(entries)
        assert status.checkpoint == one.target.checkpoint()
        assert len(status.checkpoint.gtid_executed) == entries[-1].version
        assert 1 <= status.parallelism_mean <= max(workers, 1)
        ran = {interval.version: interval for interval in applied_intervals(one.store)}
    assert sorted(ran) == list(range(1, entries[-1].version + 1))
    transactions = [one for one in history if one.step.items is not None]
    for (i, earlier), (j, later) in combinations(enumerate(transactions), 2):
        if must_not_overlap(earlier, later, transactions[i + 1 : j]):
            assert ran[earlier.entry.version].committed <= ran[later.entry.version].started


class Gate:
    """A decoder that holds every transaction until it is opened, and counts who is inside."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.opened = threading.Event()

    def decode(self, payload: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
        self.inside.release()
        assert self.opened.wait(SECONDS_MAX)
        return decode(payload)


def test_independent_transactions_are_executed_at_the_same_time(tmp_path: Path) -> None:
    gate = Gate()
    with member(tmp_path, 3, decode=gate.decode) as one:
        one.deliver(entries_of([remote(1), remote(2), remote(3)]))
        for _ in range(3):
            assert gate.inside.acquire(timeout=SECONDS_MAX)
        states = {worker.state for worker in one.applier.status().workers}
        assert states == {WorkerState.EXECUTING}
        assert one.rows() == {}
        gate.opened.set()
        assert one.applier.drain(SECONDS_MAX)
        assert [worker.executed_total for worker in one.applier.status().workers] == [1, 1, 1]


def test_who_waits_for_its_turn_has_been_executed_before(tmp_path: Path) -> None:
    """The second transaction is executed while the first is held, and commits after it."""
    gate = Gate()
    first, second = entries_of([remote(1), remote(2)])

    def hold_first(payload: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
        return gate.decode(payload) if payload == first.payload else decode(payload)

    with member(tmp_path, 2, decode=hold_first) as one:
        one.deliver([first, second])
        assert gate.inside.acquire(timeout=SECONDS_MAX)
        workers = one.applier.status
        while sum(each.executed_total for each in workers().workers) < 1:
            assert one.errors == []
            time.sleep(0.001)
        between_us = time.time_ns() // 1000
        assert one.rows() == {}
        gate.opened.set()
        assert one.applier.drain(SECONDS_MAX)
        held, waited = applied_intervals(one.store)
    assert waited.started_us <= waited.executed_us <= between_us
    assert between_us <= held.executed_us <= held.committed_us <= waited.committed_us


def test_a_local_transaction_that_nothing_stands_before_is_visible_at_return(
    tmp_path: Path,
) -> None:
    entries = entries_of([Step(frozenset({1}), local=True), Step(frozenset({1}), local=True)])
    with member(tmp_path, 2) as one:
        one.deliver(entries)
        assert one.committed == [(2, entries[-1].position)]
        assert one.rows() == {b"row/1": b"2"}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_callback_may_append(store: Store, workers: int) -> None:
    first, second = entries_of([Step(frozenset({1}), local=True)] * 2)
    queue = RelayQueue(store)
    versions: list[int] = []

    def on_committed(version: int, _: int) -> None:
        versions.append(version)
        if version == 1:
            applier.append([second])

    target = RocksDbTarget(store, decode, queue)
    applier = Applier(target, LogicalClock(), workers, on_committed, no_error, MEMBER)
    applier.append([first])
    assert applier.drain(SECONDS_MAX)
    assert versions == [1, 2]
    assert applier.stop(SECONDS_MAX)


def test_delivering_twice_is_a_bug(tmp_path: Path) -> None:
    with member(tmp_path, 1) as one:
        entries = entries_of([remote(1)])
        one.deliver(entries)
        with pytest.raises(AssertionError, match="out of order"):
            one.applier.append(entries)


def no_error(error: Exception) -> None:
    raise AssertionError from error


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_restart_in_the_middle_executes_the_rest_once(tmp_path: Path, workers: int) -> None:
    entries = entries_of(random_history(7, 200))
    with member(tmp_path, workers) as one:
        for portion in portions(entries[:120], seed=3):
            one.deliver(portion)
        assert one.applier.stop(SECONDS_MAX)
        one.deliver(entries[120:150])
        assert one.applier.status().state is ApplierState.STOPPED
        visible = one.target.checkpoint()
        position = visible.position if visible else -1
        assert one.rows() == serial_rows(e for e in entries if e.position <= position)
    with member(tmp_path, workers) as one:
        left = [entry for entry in entries[:150] if entry.position > position]
        assert one.applier.recover(one.queue.load()) == len(left)
        one.applier.append([entry for entry in entries if entry.position <= position])
        for portion in portions(entries[150:], seed=4):
            one.deliver(portion)
        assert one.applier.drain(SECONDS_MAX)
        assert one.errors == []
        assert one.rows() == serial_rows(entries)
        versions = [interval.version for interval in applied_intervals(one.store)]
        assert versions == list(range(1, entries[-1].version + 1))
        assert one.applier.status().checkpoint.gtid_executed == GtidSet.parse(
            f"{GROUP}:1-{entries[-1].version}"
        )


def test_a_partly_executed_group_is_taken_up_where_it_stands(tmp_path: Path) -> None:
    entries = entries_of([remote(1), remote(2), remote(3)])
    with member(tmp_path, 0) as one:
        one.enqueue(entries)
        one.applier.append(entries[:2])
    with member(tmp_path, 0) as one:
        assert one.applier.recover(one.queue.load()) == 1
        assert one.applier.status().skipped_total == 2
        assert one.rows() == serial_rows(entries)
        assert one.queue.length == 0


def test_what_was_executed_elsewhere_is_skipped_by_gtid_but_keeps_its_place(
    tmp_path: Path,
) -> None:
    entries = entries_of([remote(1), remote(2), remote(3)])
    with member(tmp_path, 0) as one:
        one.enqueue(entries)
        executed = GtidSet.parse(f"{GROUP}:1-2")
        progress = TargetProgress(Checkpoint(gtid_executed=executed))
        one.target.commit(CommitGroup(2, [Job(entries[:1], execution={})]), progress)
    with member(tmp_path, 0) as one:
        assert one.applier.recover(one.queue.load()) == 2
        assert one.rows() == {b"row/3": b"3"}
        status = one.applier.status()
        assert (status.skipped_total, status.checkpoint.version) == (2, 3)
        assert status.checkpoint.gtid_executed == GtidSet.parse(f"{GROUP}:1-3")


def test_recovered_local_transactions_run_alone(tmp_path: Path) -> None:
    history = [remote(1), Step(frozenset({1}), local=True), remote(1)]
    with member(tmp_path, 0) as one:
        one.enqueue(entries_of(history))
    with member(tmp_path, 4) as one:
        one.applier.recover(one.queue.load())
        assert one.applier.drain(SECONDS_MAX)
        ran = list(applied_intervals(one.store))
        assert all(a.committed <= b.started for a, b in pairwise(ran))


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_transaction_that_cannot_be_executed_stops_the_applier_and_loses_nothing(
    tmp_path: Path, workers: int
) -> None:
    entries = entries_of(remote(number) for number in range(8))
    entries[4] = entries[4]._replace(payload=b"no JSON")
    clock = LogicalClock(job_transactions_max=2)
    with member(tmp_path, workers, scheme=clock, stops=False) as one:
        one.deliver(entries)
        assert not one.applier.drain(SECONDS_MAX)
        assert not one.applier.stop(SECONDS_MAX)
        (error,) = one.errors
        notes = error.__notes__
        assert any(f"executing {GROUP}:5 at position {entries[4].position}" in n for n in notes)
        assert any(note.startswith("in worker ") for note in notes)
        status = one.applier.status()
        failure = status.failure
        assert status.state is ApplierState.FAILED and failure
        assert (failure.stage, failure.gtid) == (Stage.EXECUTING, f"{GROUP}:5")
        assert "JSONDecodeError" in failure.cause
        assert 0 <= failure.worker < max(workers, 1)
        assert any(f"in worker {failure.worker}" in note for note in notes)
        one.applier.append(entries)
        position = status.checkpoint.position
        assert position < entries[4].position
        assert one.rows() == serial_rows(e for e in entries if e.position <= position)
        kept = [entry for group in RelayQueue(one.store).load() for entry in group]
        assert kept == entries


class FullDisk(RocksDbTarget):
    """A target whose disk is full at the second commit."""

    commits = count(1)

    def commit(self, group: CommitGroup[RowChanges], progress: TargetProgress) -> None:
        if next(self.commits) == 2:
            raise DiskFull(path="there", cause="No space left on device")
        super().commit(group, progress)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("local", [False, True])
def test_a_full_disk_stops_the_applier_at_the_last_commit(
    tmp_path: Path, workers: int, local: bool
) -> None:
    FullDisk.commits = count(1)
    entries = entries_of([Step(frozenset({1}), local)] * 3)
    with member(tmp_path, workers, target_type=FullDisk, stops=False) as one:
        one.deliver(entries[:1])
        assert one.applier.drain(SECONDS_MAX)
        one.deliver(entries[1:])
        assert not one.applier.drain(SECONDS_MAX)
        assert [type(error) for error in one.errors] == [DiskFull]
        assert [version for version, _ in one.committed] == [1]
        assert one.applier.status().checkpoint == one.target.checkpoint()
    with member(tmp_path, workers) as one:
        one.applier.recover(one.queue.load())
        assert one.applier.drain(SECONDS_MAX)
        assert one.rows() == serial_rows(entries)


def test_a_corrupt_relay_queue_is_not_executed(tmp_path: Path) -> None:
    with member(tmp_path, 1) as one:
        one.enqueue(entries_of([remote(1)]))
        ((key, stored),) = one.store.scan(Family.RELAY)
        put(one.store, Family.RELAY, (key, stored[:-1] + b"?"))
    with member(tmp_path, 1) as one:
        with pytest.raises(CorruptStore, match="checksum"):
            one.applier.recover(one.queue.load())
        assert one.rows() == {}


def test_a_worker_that_hangs_is_reported_by_stop(tmp_path: Path) -> None:
    gate = Gate()
    with member(tmp_path, 1, decode=gate.decode) as one:
        one.deliver(entries_of([remote(1)]))
        assert gate.inside.acquire(timeout=SECONDS_MAX)
        assert not one.applier.stop(0.01)
        gate.opened.set()
        assert one.applier.stop(SECONDS_MAX)
        assert one.rows() == {b"row/1": b"1"}


@pytest.mark.parametrize("workers", [-1, WORKERS_MAX + 1])
def test_an_impossible_number_of_workers_is_refused(tmp_path: Path, workers: int) -> None:
    with pytest.raises(InvalidSetting, match=rf"workers is '{workers}': expected 0 to 1024"):
        with member(tmp_path, workers):
            pass
