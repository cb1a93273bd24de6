"""Checkpoints and the durability watermark."""

import threading
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from applier.checkpoint import Checkpoint, DurabilityFlusher, Progress, version_of
from applier.job import CommitGroup, Job
from certifier.errors import DiskFull, InvalidSetting
from certifier.gtid import Gtid
from certifier.gtid_set import GtidSet
from certifier.store import Family, Store
from tests.applier.histories import GROUP, VIEW_CHANGE, entries_of, remote

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
    progress = Progress(Checkpoint())
    seen: list[Gtid] = []
    for tick, start in enumerate(range(0, len(entries), 5)):
        group = entries[start : start + 5]
        jobs: list[Job[None]] = [Job(group[:2], 0)]
        jobs += [Job(group[2:], 0)] if group[2:] else []
        checkpoint = progress.advance(CommitGroup(tick, jobs))
        seen += [entry.gtid for entry in group if entry.gtid]
        assert checkpoint.gtid_executed == GtidSet.of(*seen)
        assert (checkpoint.position, checkpoint.tick) == (group[-1].position, tick)


def test_a_view_change_moves_the_position_only() -> None:
    progress = Progress(Checkpoint())
    transaction, view_change = entries_of([remote(1), VIEW_CHANGE])
    before = progress.advance(CommitGroup[None](2, [Job([transaction], 0)]))
    after = progress.advance(CommitGroup[None](3, [Job([view_change], 0)]))
    assert (after.version, after.gtid_executed) == (1, before.gtid_executed)
    assert after.position > before.position


def no_error(error: Exception) -> None:
    raise AssertionError from error


def test_the_watermark_follows_what_was_requested(store: Store) -> None:
    advances: SimpleQueue[int] = SimpleQueue()
    flusher = DurabilityFlusher(store, advances.put, no_error, period_ms=1)
    for watermark in range(1, 50):
        batch = store.batch()
        batch.put(Family.META, b"key", b"%d" % watermark)
        store.write(batch)
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
