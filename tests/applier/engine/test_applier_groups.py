"""Jobs of several transactions, and groups whose first jobs are visible before the last is durable.

Aim: what an SQL target makes use of, with real threads over a real store.
"""

import time

import pytest

from groupcert.applier.engine.applier import Applier
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import TargetProgress
from groupcert.applier.schemes.catalogue import scheme
from groupcert.applier.schemes.logical_clock import LogicalClock
from groupcert.applier.targets.rocksdb import RocksDbTarget, RowChanges
from groupcert.certifier.storage.store import Store
from tests.applier.engine.test_applier_schemes import SCHEMES, SECONDS_MAX, Pausing
from tests.applier.histories import GROUP, decode, serial_rows, source_history


class Early(Pausing):
    """A target whose commits are visible one by one, some time before their group is durable."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, decode)
        self.executing = 0
        self.overlapped = 0

    def execute(self, job: Job[RowChanges]) -> RowChanges:
        """Counts."""
        self.executing += 1
        return super().execute(job)

    def commit(self, group: CommitGroup[RowChanges], progress: TargetProgress) -> None:
        """Commits each job, says so, and is done with the last one after a while.

        Until somebody has gone on once, commits are slow enough for groups to form behind them and
        for whoever may go on to be seen to, however the threads are scheduled.
        """
        for job in group.jobs[:-1]:
            super().commit(CommitGroup(group.tick, [job]), progress)
            before = self.executing
            group.visible(1)
            patience = time.monotonic() + (0.001 if self.overlapped else 0.25)
            while self.executing == before and time.monotonic() < patience:
                time.sleep(0.001)
            self.overlapped += self.executing > before
        if not self.overlapped:
            time.sleep(0.02)
        super().commit(CommitGroup(group.tick, group.jobs[-1:]), progress)


@pytest.mark.parametrize("name", ["at-most-one", "first-available", "graph", "ordered"])
def test_workers_of_visible_jobs_go_on_before_their_group_is_done(store: Store, name: str) -> None:
    entries = source_history(seed=5, transactions=300)
    target = Early(store)
    applier = Applier(target, SCHEMES[name](), 8, lambda *_: None, lambda _: None)
    applier.append(entries)
    assert applier.drain(SECONDS_MAX)
    assert applier.stop(SECONDS_MAX)
    assert dict(target.open_snapshot().scan()) == serial_rows(entries)
    status = applier.status()
    assert (status.committed_total, status.has_gaps) == (len(entries), False)
    assert target.overlapped, "nobody went on"


@pytest.mark.parametrize("name", ["runs", "merge"])
def test_of_several_transactions_in_a_job_the_one_that_fails_is_named(
    store: Store, name: str
) -> None:
    entries = [
        entry._replace(payload=b"no rows" if entry.version == 6 else entry.payload)
        for entry in source_history(seed=1, transactions=12)
    ]
    made = scheme("logical-clock", job_transactions_max=8) if name == "runs" else SCHEMES["merge"]()
    errors: list[Exception] = []
    applier = Applier(RocksDbTarget(store, decode), made, 1, lambda *_: None, errors.append)
    applier.append(entries)
    assert not applier.drain(SECONDS_MAX)
    applier.stop(SECONDS_MAX)
    assert len(errors) == 1
    failure = applier.status().failure
    assert failure and failure.gtid == f"{GROUP}:6"


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_nothing_after_an_entry_that_ends_its_group_is_visible_when_it_is_heard_of(
    store: Store, workers: int
) -> None:
    """Local transactions behind it would be committed with it otherwise: none of them waits."""
    transactions = [
        each._replace(position=2 * each.position, local=each.version % 3 > 0)
        for each in source_history(seed=3, transactions=200)
    ]
    marks = [
        RelayEntry.view_change(each.position + 1, each.version, 1)
        for each in transactions
        if each.version % 10 == 0
    ]
    entries = sorted([*transactions, *marks], key=lambda entry: entry.position)
    target = RocksDbTarget(store, decode)
    heard: dict[int, dict[bytes, bytes]] = {}
    ends = {mark.position for mark in marks}

    def committed(_: int, position: int) -> None:
        if position in ends:
            heard[position] = dict(target.open_snapshot().scan())

    applier = Applier(target, LogicalClock(), workers, committed, lambda _: None)
    for mark in marks:
        applier.end_group_after(mark.position)
    applier.append(entries)
    assert applier.drain(SECONDS_MAX)
    assert applier.stop(SECONDS_MAX)
    for mark in marks:
        before = [each for each in entries if each.position < mark.position]
        assert heard[mark.position] == serial_rows(before), f"after version {mark.version}"
