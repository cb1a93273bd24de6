"""Checkpoints and the durability watermark."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.errors import note_statement
from groupcert.applier.queue.job import FIRST_TICK, CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.row_parts import Part
from groupcert.applier.queue.target_progress import (
    Checkpoint,
    DurabilityFlusher,
    LastError,
    Stage,
    TargetProgress,
    version_of,
)
from groupcert.certifier.errors import DiskFull, InvalidSetting
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.storage.store import Family, Store
from tests.applier.histories import GROUP, VIEW_CHANGE, entries_of, remote
from tests.applier.scheme_driver import SOURCE, entry
from tests.stores import put

SECONDS_MAX = 20


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    executed = GtidSet.parse(f"{GROUP}:1-7:9:backup:1-2")
    checkpoint = Checkpoint(version=8, position=9 << 20, tick=3, gtid_executed=executed)
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint
    assert version_of(checkpoint.encode()) == 8


gtids = st.builds(Gtid, st.sampled_from([GROUP, f"{GROUP}:backup"]), st.integers(1, 30))


@given(st.lists(gtids | st.none(), min_size=1, unique_by=lambda gtid: gtid or object()))
def test_progress_has_exactly_the_gtids_of_its_groups(gtids: list[Gtid | None]) -> None:
    entries = [
        entry._replace(gtid=gtid)
        for entry, gtid in zip(entries_of([remote(1)] * len(gtids)), gtids, strict=True)
    ]
    progress = TargetProgress(Checkpoint())
    seen: list[Gtid] = []
    for tick, start in enumerate(range(0, len(entries), 5), FIRST_TICK + 1):
        group = entries[start : start + 5]
        jobs: list[Job[None]] = [Job(group[:2])]
        jobs += [Job(group[2:])] if group[2:] else []
        checkpoint = progress.advance(CommitGroup(tick, jobs))
        seen += [entry.gtid for entry in group if entry.gtid]
        assert checkpoint.gtid_executed == GtidSet.of(*seen)
        assert (checkpoint.position, checkpoint.tick) == (group[-1].position, tick)


def test_a_view_change_moves_the_position_only() -> None:
    progress = TargetProgress(Checkpoint())
    transaction, view_change = entries_of([remote(1), VIEW_CHANGE])
    before = progress.advance(CommitGroup[None](2, [Job([transaction])]))
    after = progress.advance(CommitGroup[None](3, [Job([view_change])]))
    assert (after.version, after.gtid_executed) == (1, before.gtid_executed)
    assert after.position > before.position


def test_a_checkpoint_with_parts_and_domains_is_read_as_it_was_written() -> None:
    checkpoint = Checkpoint(
        parts={Gtid(GROUP, 7): frozenset({"a.t", "0/4"})}, domains={0: Gtid(GROUP, 9), 3: GTID}
    )
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint


GTID = Gtid(f"{GROUP}:backup", 4)


def test_an_error_is_read_as_it_was_written() -> None:
    failure = ValueError("a ç of 'no' \0 value")
    note_statement(failure, "INSERT " + "x" * 300)
    error = LastError.of(Stage.COMMITTING, failure, 3, GTID)
    assert error.cause == "ValueError: a ç of 'no' \0 value"
    assert (len(error.statement), error.statement[:9]) == (200, "INSERT xx")
    checkpoint = Checkpoint(error=error, gtid_executed=GtidSet.of(Gtid(GROUP, 1)))
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint


def test_an_error_is_over_with_its_transaction_and_not_with_those_that_overtake_it() -> None:
    first, second, third = entries_of([remote(1)] * 3)
    progress = TargetProgress(Checkpoint())
    progress.note(LastError.of(Stage.EXECUTING, ValueError("no"), 0, second.gtid))
    for one in (first, third):
        checkpoint = progress.advance(CommitGroup[None](2, [Job([one])]))
        assert checkpoint.error and checkpoint.error.gtid == str(second.gtid)
    again = TargetProgress(Checkpoint.decode(checkpoint.encode()))
    assert again.checkpoint.error == checkpoint.error
    assert again.advance(CommitGroup[None](3, [Job([second])])).error is None


def test_an_error_without_a_transaction_is_over_with_any() -> None:
    first, second = entries_of([remote(1)] * 2)
    progress = TargetProgress(Checkpoint())
    progress.advance(CommitGroup[None](2, [Job([first])]))
    progress.note(LastError.of(Stage.READING, ValueError("no")))
    kept = progress.checkpoint
    assert kept.error and kept.error.received == 1
    assert TargetProgress(kept).checkpoint.error, "an SQL target reads the rest of what is executed"
    assert progress.advance(CommitGroup[None](3, [Job([second])])).error is None
    both = replace(kept, gtid_executed=progress.checkpoint.gtid_executed)
    assert TargetProgress(both).checkpoint.error is None


@given(st.permutations(range(12)), st.integers(1, 4))
def test_groups_may_come_in_any_order(order: list[int], size: int) -> None:
    entries = [entry(position, domain_id=position % 2) for position in range(1, 13)]
    progress = TargetProgress(Checkpoint())
    done: list[RelayEntry] = []
    for tick, start in enumerate(range(0, len(order), size), FIRST_TICK + 1):
        group = [entries[index] for index in sorted(order[start : start + size])]
        jobs: list[Job[None]] = [Job([one]) for one in group]
        checkpoint = progress.advance(CommitGroup(tick, jobs))
        done += group
        assert checkpoint.gtid_executed == GtidSet.of(*(one.gtid for one in done if one.gtid))
        assert checkpoint.position == checkpoint.version == max(one.position for one in done)
        assert checkpoint.tick == tick
        assert Checkpoint.decode(checkpoint.encode()) == checkpoint
    assert str(progress.checkpoint.gtid_executed) == f"{SOURCE}:1-12"


def part_jobs(one: RelayEntry, tables: Sequence[str]) -> list[Job[None]]:
    return [Job([one], part=Part(table=table), parts=len(tables)) for table in tables]


@given(st.permutations("abcd"), st.integers(0, 4))
def test_a_divided_transaction_is_executed_with_its_last_part_also_after_a_restart(
    order: list[str], before_restart: int
) -> None:
    one = entry(1, domain_id=2)
    jobs = part_jobs(one, order)
    progress = TargetProgress(Checkpoint())
    for number, job in enumerate(jobs[:before_restart], 1):
        checkpoint = progress.advance(CommitGroup(number, [job]))
        whole = number == len(jobs)
        assert bool(checkpoint.gtid_executed) == bool(checkpoint.domains) == whole
        assert checkpoint.parts == ({} if whole else {one.gtid: frozenset(order[:number])})
    if before_restart == len(jobs):
        return
    progress = TargetProgress(Checkpoint.decode(progress.checkpoint.encode()))
    for job in reversed(jobs):
        progress.advance(CommitGroup(9, [job]))
    assert progress.checkpoint.gtid_executed == GtidSet.of(*filter(None, [one.gtid]))
    assert progress.checkpoint.parts == {}
    assert progress.checkpoint.domains == {2: one.gtid}


def test_the_parts_of_a_transaction_may_be_one_group() -> None:
    before, divided = entry(1), entry(2)
    jobs = [Job[None]([before]), *part_jobs(divided, ["a", "b"])]
    checkpoint = TargetProgress(Checkpoint()).advance(CommitGroup(2, jobs))
    assert (str(checkpoint.gtid_executed), checkpoint.parts) == (f"{SOURCE}:1-2", {})


def test_the_newest_gtid_of_each_domain_is_known_as_soon_as_there_is_one() -> None:
    progress = TargetProgress(Checkpoint())
    entries = [entry(1), entry(2, domain_id=3), entry(3), entry(4, alone=True)]
    domains = [progress.advance(CommitGroup[None](2, [Job([one])])).domains for one in entries]
    second, third = {3: entries[1].gtid}, {3: entries[1].gtid, 0: entries[2].gtid}
    assert domains == [{}, second, third, third]


def test_what_fails_while_it_is_written_does_not_count() -> None:
    progress = TargetProgress(Checkpoint())
    first = progress.advance(CommitGroup[None](2, [Job([entry(1)])]))
    lost = [Job[None]([entry(3, domain_id=1)]), *part_jobs(entry(4), ["a", "b"])[:1]]
    with pytest.raises(OSError, match="no"), progress.advancing(CommitGroup(3, lost)) as shown:
        assert len(shown.gtid_executed) == 2
        raise OSError("no")
    assert progress.checkpoint == first
    after = progress.advance(CommitGroup[None](4, [Job([entry(2)])]))
    assert after == Checkpoint(
        version=2, position=2, tick=4, gtid_executed=GtidSet.parse(f"{SOURCE}:1-2")
    )


def test_any_thread_may_advance() -> None:
    progress = TargetProgress(Checkpoint())
    threads = [
        threading.Thread(
            target=lambda first=first: [
                progress.advance(CommitGroup[None](position, [Job([entry(position)])]))
                for position in range(first, 801, 8)
            ]
        )
        for first in range(1, 9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert progress.checkpoint == Checkpoint(
        version=800, position=800, tick=800, gtid_executed=GtidSet.parse(f"{SOURCE}:1-800")
    )


def no_error(error: Exception) -> None:
    raise AssertionError from error


def test_the_watermark_follows_what_was_requested(store: Store) -> None:
    advances: SimpleQueue[int] = SimpleQueue()
    flusher = DurabilityFlusher(store, advances.put, no_error, period_ms=1)
    for watermark in range(1, 50):
        put(store, Family.META, (b"key", b"%d" % watermark))
        flusher.request(watermark)
    seen = [advances.get(timeout=SECONDS_MAX)]
    while seen[-1] < 49:
        seen.append(advances.get(timeout=SECONDS_MAX))
    assert seen == sorted(set(seen))
    assert flusher.durable == 49
    assert flusher.stop(SECONDS_MAX)


def test_stopping_makes_the_last_request_durable_without_waiting_for_the_period(
    store: Store,
) -> None:
    advances: SimpleQueue[int] = SimpleQueue()
    flusher = DurabilityFlusher(store, advances.put, no_error, period_ms=3_600_000)
    flusher.request(1)
    assert advances.get(timeout=SECONDS_MAX) == 1
    flusher.request(2)
    assert flusher.stop(SECONDS_MAX)
    assert flusher.durable == 2


def test_requests_while_a_flush_runs_share_the_next_one() -> None:
    class SlowStore(Store):
        def __init__(self) -> None:
            self.flushes = 0
            self.started = threading.Semaphore(0)
            self.go_on = threading.Semaphore(0)

        def flush(self) -> None:
            self.flushes += 1
            self.started.release()
            assert self.go_on.acquire(timeout=SECONDS_MAX)

    slow = SlowStore()
    advances: SimpleQueue[int] = SimpleQueue()
    flusher = DurabilityFlusher(slow, advances.put, no_error, period_ms=0)
    flusher.request(1)
    assert slow.started.acquire(timeout=SECONDS_MAX)
    for watermark in range(2, 100):
        flusher.request(watermark)
    slow.go_on.release(2)
    assert [advances.get(timeout=SECONDS_MAX) for _ in range(2)] == [1, 99]
    assert flusher.stop(SECONDS_MAX)
    assert slow.flushes == 2


def test_a_full_disk_is_reported_once_and_the_watermark_stands_still() -> None:
    class FullStore(Store):
        def __init__(self) -> None:
            pass

        def flush(self) -> None:
            raise DiskFull(path="there", cause="No space left on device")

    errors: SimpleQueue[Exception] = SimpleQueue()
    flusher = DurabilityFlusher(FullStore(), lambda _: None, errors.put, period_ms=0)
    flusher.request(1)
    assert isinstance(errors.get(timeout=SECONDS_MAX), DiskFull)
    flusher.request(2)
    assert flusher.stop(SECONDS_MAX)
    assert errors.empty()
    assert flusher.durable == 0


def test_a_negative_period_is_refused(store: Store) -> None:
    with pytest.raises(InvalidSetting, match="flush_period_ms is '-1'"):
        DurabilityFlusher(store, lambda _: None, no_error, period_ms=-1)
