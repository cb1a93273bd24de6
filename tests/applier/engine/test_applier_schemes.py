"""Every scheme with real threads over a real store: the rows of serial execution, whatever fails.

Workers pause at random, so that they overtake each other wherever a scheme lets them. A target with
row locks stands for one whose sessions block each other between execution and commit.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import pytest

from groupcert.applier.engine.applier import Applier, ApplierOptions, ApplierState, ApplierStatus
from groupcert.applier.engine.worker import WorkerState
from groupcert.applier.errors import TransientFailure
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import Checkpoint, TargetProgress
from groupcert.applier.schemes import Consistency, Ordering, Scheme
from groupcert.applier.schemes.by_table import ByTable
from groupcert.applier.schemes.catalogue import scheme
from groupcert.applier.schemes.logical_clock import LogicalClock
from groupcert.applier.targets.rocksdb import RocksDbTarget, RowChanges
from groupcert.certifier.storage.store import Store
from tests.applier.histories import GROUP, TABLES, decode, serial_rows, source_history
from tests.applier.scheme_driver import entry

SECONDS_MAX = 60
SCHEMES: dict[str, Callable[[], Scheme]] = {
    "at-most-one": partial(scheme, "logical-clock"),
    "first-available": partial(scheme, "logical-clock", policy="first-available"),
    "any-order": partial(scheme, "logical-clock", preserve_commit_order=False),
    "commit-parent": partial(scheme, "commit-parent"),
    "group-commit": partial(scheme, "group-commit"),
    "database": partial(scheme, "database"),
    "ordered-database": partial(scheme, "database", preserve_commit_order=True),
    "table": partial(scheme, "table"),
    "rows": partial(scheme, "rows"),
    "ignore": partial(scheme, "jobs", conflicts="ignore"),
    "ordered": partial(scheme, "jobs", conflicts="ordered"),
    "barrier": partial(scheme, "jobs", conflicts="barrier"),
    "graph": partial(scheme, "jobs", conflicts="graph"),
    "merge": partial(scheme, "jobs", conflicts="merge"),
}
QUICK = ApplierOptions(retry_pause_ms=0, transaction_retries=1_000_000)
"""Who holds a lock may not run for a while; ten retries without a pause are over by then."""


class Pausing(RocksDbTarget):
    """A target whose executions take different times."""

    def execute(self, job: Job[RowChanges]) -> RowChanges:
        """Executes, after a moment."""
        time.sleep(random.Random(job.entries[0].position * 7 + job.worker).random() / 4_000)
        return super().execute(job)


class Locked(Pausing):
    """A target that locks each row from execution to commit; who meets a lock gives up."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, decode)
        self.owners: dict[bytes, Job[RowChanges]] = {}
        self.abandoned: Counter[int] = Counter()
        self._latch = threading.Lock()

    def execute(self, job: Job[RowChanges]) -> RowChanges:
        """Executes with all locks or none."""
        changes = super().execute(job)
        with self._latch:
            if taken := changes.keys() & self.owners.keys():
                raise TransientFailure(kind="lock_timeout", text=f"{sorted(taken)}")
            self.owners.update(dict.fromkeys(changes, job))
        return changes

    def commit(self, group: CommitGroup[RowChanges], progress: TargetProgress) -> None:
        """Commits, and unlocks."""
        super().commit(group, progress)
        for job in group.jobs:
            self._unlock(job)

    def abandon(self, job: Job[RowChanges]) -> None:
        """Unlocks what was executed."""
        assert job.execution is not None, "nobody says what is to be undone"
        self.abandoned[job.entries[0].position] += 1
        self._unlock(job)

    def _unlock(self, job: Job[RowChanges]) -> None:
        with self._latch:
            for key in [key for key, owner in self.owners.items() if owner is job]:
                del self.owners[key]


class Failing(RocksDbTarget):
    """A target where a version fails so often before it is executed."""

    failures: Counter[int]
    tried: Counter[int]

    def execute(self, job: Job[RowChanges]) -> RowChanges:
        """Executes, if it does not fail."""
        version = job.entries[0].version
        self.tried[version] += 1
        if self.failures[version]:
            self.failures[version] -= 1
            raise TransientFailure(kind="deadlock", text=f"{version}")
        return super().execute(job)


def failing(store: Store, **failures: int) -> Failing:
    target = Failing(store, decode)
    target.failures = Counter({int(name[1:]): times for name, times in failures.items()})
    target.tried = Counter()
    return target


class Running(NamedTuple):
    """An applier, and what it told."""

    applier: Applier[RowChanges]
    target: RocksDbTarget
    errors: list[Exception]

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.target.open_snapshot().scan())

    def finish(self, entries: Sequence[RelayEntry]) -> ApplierStatus:
        """Applies entries in portions, to the end."""
        for start in range(0, len(entries), 16):
            self.applier.append(entries[start : start + 16])
        drained = self.applier.drain(SECONDS_MAX)
        assert self.errors == []
        assert drained, self.applier.status()
        return self.applier.status()


@contextmanager
def running(
    target: RocksDbTarget,
    scheme: Scheme,
    workers: int,
    options: ApplierOptions = QUICK,
    *,
    stops: bool = True,
) -> Iterator[Running]:
    errors: list[Exception] = []
    applier = Applier(target, scheme, workers, lambda *_: None, errors.append, options)
    try:
        yield Running(applier, target, errors)
    finally:
        assert applier.stop(SECONDS_MAX) == stops


def states_of(entries: Sequence[RelayEntry]) -> set[frozenset[tuple[bytes, bytes]]]:
    """Every state that serial execution goes through."""
    rows: dict[bytes, bytes] = {}

    def after(rows: dict[bytes, bytes], one: RelayEntry) -> dict[bytes, bytes]:
        put_keys, put_values, delete_keys = decode(one.payload) if one.payload else ([], [], [])
        kept = {key: value for key, value in rows.items() if key not in delete_keys}
        return {**kept, **dict(zip(put_keys, put_values, strict=True))}

    return {frozenset(state.items()) for state in accumulate(entries, after, initial=rows)}


class Reader(threading.Thread):
    """Samples the rows, of each domain apart where only a domain is in order."""

    def __init__(self, target: RocksDbTarget, entries: Sequence[RelayEntry], by: Ordering) -> None:
        super().__init__()
        self.strange: list[object] = []
        self.samples = 0
        self._target = target
        self._ended = threading.Event()
        domains = {0, 1} if by is Ordering.DOMAIN else {None}
        self._states = {
            domain: states_of([e for e in entries if domain in (None, e.header.domain_id)])
            for domain in domains
        }

    def run(self) -> None:
        while not self._ended.is_set():
            rows = list(self._target.open_snapshot().scan())
            for domain, states in self._states.items():
                seen = frozenset(
                    (key, value)
                    for key, value in rows
                    if domain in (None, int(key.startswith(b"log.")))
                )
                if seen not in states:
                    self.strange.append((domain, seen))
            self.samples += 1
            self._ended.wait(0.0003)

    def end(self) -> None:
        self._ended.set()
        self.join()


@pytest.mark.parametrize("workers", [0, 1, 2, 4, 16])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_end_is_that_of_serial_execution_and_any_time_means_it(
    store: Store, name: str, workers: int
) -> None:
    entries = source_history(seed=workers, transactions=50)
    chosen = SCHEMES[name]()
    target = Pausing(store, decode)
    reader = Reader(target, entries, chosen.ordering)
    with running(target, chosen, workers) as one:
        reader.start()
        status = one.finish(entries)
        reader.end()
        assert one.rows() == serial_rows(entries)
        if chosen.consistency is Consistency.ANY_TIME or not workers:
            assert reader.strange == []
        assert reader.samples > 0
        checkpoint = status.checkpoint
        assert str(checkpoint.gtid_executed) == f"{GROUP}:1-{entries[-1].version}"
        assert checkpoint == target.checkpoint()
        assert checkpoint.parts == {}
        assert (status.length, status.assigned, status.pending_bytes) == (0, 0, 0)
        assert status.committed_total == len(entries)
        assert status.low_water_mark == entries[-1]
        assert not status.has_gaps


@pytest.mark.parametrize("name", ["database", "table", "ignore", "any-order"])
def test_the_reader_finds_states_that_never_were_where_they_are_allowed(
    store: Store, name: str
) -> None:
    entries = source_history(seed=5, transactions=200)
    target = Pausing(store, decode)
    chosen = SCHEMES[name]()
    assert chosen.consistency is not Consistency.ANY_TIME
    states = states_of(entries)
    strange = []
    write = store.write

    def look(batch: object) -> None:
        write(batch)  # type: ignore[arg-type]  # The batch that the store was given.
        seen = frozenset(target.open_snapshot().scan())
        strange.append(seen not in states)

    store.write = look  # type: ignore[method-assign]  # Each commit is looked at, none is missed.
    with running(target, chosen, 8) as one:
        one.finish(entries)
    assert any(strange)
    assert not strange[-1]


@pytest.mark.parametrize("workers", [2, 4, 16])
@pytest.mark.parametrize(
    "name", ["ordered", "ignore", "group-commit", "ordered-database", "table", "rows", "merge"]
)
def test_whoever_stands_in_the_way_of_an_older_one_gives_way(
    store: Store, name: str, workers: int
) -> None:
    entries = source_history(seed=workers, transactions=60)
    target = Locked(store)
    with running(target, SCHEMES[name](), workers) as one:
        one.finish(entries)
        assert one.rows() == serial_rows(entries)
    assert not target.owners


@pytest.mark.parametrize("seed", range(16))
def test_conflicting_jobs_in_order_end_as_serial_execution_without_deadlock(
    store: Store, seed: int
) -> None:
    chance = random.Random(seed)
    rows = [[chance.randrange(3), chance.randrange(3)] for _ in range(40)]
    entries = [
        entry(version, payload=b'[["a.t/%d", "%d"], ["b.t/%d", "1"]]' % (one, version, other))
        for version, (one, other) in enumerate(rows, 1)
    ]
    target = Locked(store)
    with running(target, SCHEMES["ordered"](), 4) as one:
        status = one.finish(entries)
        assert one.rows() == serial_rows(entries)
    assert not target.owners
    assert sum(worker.retried_total for worker in status.workers) > 0


def test_a_younger_job_that_is_executed_is_abandoned_and_executed_again(store: Store) -> None:
    entries = [entry(1, payload=b'[["a.t/1", "1"]]'), entry(2, payload=b'[["a.t/1", "2"]]')]
    younger_is_ready = threading.Event()

    class Reversed(Locked):
        def execute(self, job: Job[RowChanges]) -> RowChanges:
            if job.entries[0].version == 1:
                assert younger_is_ready.wait(SECONDS_MAX)
            execution = super().execute(job)
            younger_is_ready.set()
            return execution

    target = Reversed(store)
    with running(target, SCHEMES["ordered"](), 2) as one:
        one.finish(entries)
        assert one.rows() == {b"a.t/1": b"2"}
    assert target.abandoned == {2: 1}


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_transient_failure_is_tried_again(store: Store, workers: int) -> None:
    entries = source_history(seed=1, transactions=20)
    target = failing(store, v3=2, v7=10)
    with running(target, SCHEMES["ordered"](), workers) as one:
        portions = [[one] for one in entries]
        for portion in portions:
            one.applier.append(portion)
        status = one.finish([])
        assert one.rows() == serial_rows(entries)
        assert sum(worker.retried_total for worker in status.workers) == 12
    assert (target.tried[3], target.tried[7]) == (3, 11)


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("retries", [0, 3])
def test_a_failure_that_stays_stops_with_worker_and_gtid_and_a_restart_loses_nothing(
    store: Store, workers: int, retries: int
) -> None:
    entries = [one for one in source_history(seed=2, transactions=40) if one.gtid]
    target = failing(store, v9=100)
    options = ApplierOptions(transaction_retries=retries, retry_pause_ms=0)
    with running(target, SCHEMES["ordered"](), workers, options, stops=False) as one:
        for each in entries:
            one.applier.append([each])
        assert not one.applier.drain(SECONDS_MAX)
        assert not one.applier.wait_for_room(1_000, 1_000_000, SECONDS_MAX)
        status = one.applier.status()
        failure = status.failure
        assert status.state is ApplierState.FAILED and failure
        assert failure.gtid == f"{GROUP}:9"
        assert "deadlock" in failure.cause
        assert f"in worker {failure.worker}" in one.errors[0].__notes__
        assert target.tried[9] == retries + 1
    assert [type(error) for error in one.errors] == [TransientFailure]
    done = status.checkpoint.gtid_executed
    assert one.rows() == serial_rows(e for e in entries if e.gtid and e.gtid in done)
    target.failures.clear()
    with running(target, SCHEMES["ordered"](), workers) as one:
        one.finish([each for each in entries if each.gtid and each.gtid not in done])
        assert one.rows() == serial_rows(entries)


class Gated(RocksDbTarget):
    """A target that executes when it may."""

    opened: threading.Event

    def execute(self, job: Job[RowChanges]) -> RowChanges:
        """Executes, once the gate is open."""
        assert self.opened.wait(SECONDS_MAX)
        return super().execute(job)


@pytest.fixture
def gated(store: Store) -> Gated:
    target = Gated(store, decode)
    target.opened = threading.Event()
    return target


def one_row(number: int) -> RelayEntry:
    return entry(number, (0, number), payload=b'[["a.t/%d", "x"]]' % number, tables=("a.t",))


def test_stop_waits_for_what_is_assigned_and_takes_nothing_more(gated: Gated) -> None:
    entries = [one_row(number) for number in range(1, 6)]
    with running(gated, LogicalClock(), 2) as one:
        one.applier.append(entries)
        assert one.applier.status().assigned == 2
        stopped: list[bool] = []
        stopping = threading.Thread(target=lambda: stopped.append(one.applier.stop(SECONDS_MAX)))
        stopping.start()
        gated.opened.set()
        stopping.join(SECONDS_MAX)
        status = one.applier.status()
        assert stopped == [True]
        assert (status.state, status.assigned) == (ApplierState.STOPPED, 0)
        assert {worker.state for worker in status.workers} == {WorkerState.STOPPED}
        assert status.committed_total + status.length == 5
        done = entries[: status.committed_total]
        assert one.rows() == serial_rows(done)


def test_a_stop_that_takes_too_long_says_so_and_what_is_kept_is_given_up(gated: Gated) -> None:
    entries = [one_row(number) for number in range(1, 6)]
    with running(gated, ByTable(), 2, stops=False) as one:
        one.applier.append(entries)
        assert one.applier.status().assigned == 5
        assert not one.applier.stop(0.01)
        gated.opened.set()
    checkpoint = gated.checkpoint()
    assert checkpoint
    executed = checkpoint.gtid_executed
    assert one.rows() == serial_rows(e for e in entries if e.gtid and e.gtid in executed)
    assert len(executed) < 5


def test_an_applier_without_workers_stops_between_groups(store: Store) -> None:
    entries = [one_row(number) for number in range(1, 6)]
    target = RocksDbTarget(store, decode, on_commit=lambda *_: stops.append(one.applier.stop(0)))
    stops: list[bool] = []
    with running(target, LogicalClock(), 0) as one:
        one.applier.append(entries[:1])
        one.applier.append(entries[1:])
        assert one.rows() == serial_rows(entries[:1])
    assert stops == [False]


def test_who_waits_for_room_goes_on_when_there_is_some(gated: Gated) -> None:
    entries = [one_row(number) for number in range(1, 6)]
    size = len(entries[0].payload)
    with running(gated, LogicalClock(), 2) as one:
        assert one.applier.wait_for_room(1, 1, 0)
        one.applier.append(entries)
        status = one.applier.status()
        assert (status.length, status.pending_bytes) == (5, 5 * size)
        assert one.applier.wait_for_room(6, 5 * size + 1, 0)
        assert not one.applier.wait_for_room(5, 5 * size + 1, 0.01)
        assert not one.applier.wait_for_room(6, 5 * size, 0.01)
        gated.opened.set()
        assert one.applier.wait_for_room(1, 1, SECONDS_MAX)
        assert one.applier.drain(0)
    assert not one.applier.wait_for_room(6, 100, 0)


def test_checkpoints_are_saved_every_so_many_groups_and_at_the_stop(store: Store) -> None:
    saved: list[int] = []

    class Saving(RocksDbTarget):
        def save(self, checkpoint: Checkpoint) -> None:
            saved.append(checkpoint.version)

    options = ApplierOptions(checkpoint_group=3, checkpoint_period_ms=3_600_000)
    with running(Saving(store, decode), LogicalClock(), 1, options) as one:
        for number in range(1, 9):
            one.finish([one_row(number)])
        assert saved == [3, 6]
    assert saved == [3, 6, 8]
    saved.clear()
    options = ApplierOptions(checkpoint_group=1_000, checkpoint_period_ms=0)
    with running(Saving(store, decode), LogicalClock(), 1, options) as one:
        one.finish([one_row(9)])
        assert saved == [9]


def test_histories_have_what_every_scheme_needs() -> None:
    entries = source_history(seed=3, transactions=300)
    tables = {table for one in entries for table in one.header.tables or ()}
    assert tables == set(TABLES)
    groups = Counter(one.header.commit_id for one in entries if one.header.commit_id)
    assert max(groups.values()) > 2
    assert any(one.gtid is None for one in entries)
    assert any(one.gtid and not one.header.items for one in entries)
