"""What a member does where it cannot go on: with what it has read, and with those who wait."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from groupcert.certifier.errors import DiskFull, LogGap, NotServing, UnsupportedFormat
from groupcert.certifier.records import Verdict
from groupcert.certifier.storage.store import Batch
from groupcert.certifier.write_set import store_key_item
from groupcert.internal.v1.log_pb2 import LogBatchHead
from groupcert.members.core.catch_up import CatchUp
from groupcert.members.core.log_records import (
    Forgetting,
    LogBatch,
    LoggedTransaction,
    ViewProposal,
)
from groupcert.members.core.views import FORMAT_VERSION, MemberState, ViewMember
from groupcert.members.runtime.join import come_near
from groupcert.members.runtime.operations import leave
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.total_order.port import Delivery
from groupcert.members.wire.log_batches import encode_batch
from groupcert.v1.transaction_pb2 import Changes
from tests.members.process.test_lifecycle import config_of
from tests.members.rows import rows_of
from tests.sim.memory_order import MemoryLog, MemoryOrder

WRITER = ViewMember(name="m2", incarnation=7, address="127.0.0.1:1")


def runtime_at(folder: Path, **settings: Any) -> MemberRuntime:
    log = MemoryLog("g")
    log.create()
    config = config_of(folder, create_log=False, **settings)
    return MemberRuntime(config, MemoryOrder(log), lambda state: None)


def messages(runtime: MemberRuntime) -> list[Delivery]:
    """The first view, and a transaction of another member that puts one row."""
    changes = Changes(put_keys=[b"key"], put_values=[b"value"]).SerializeToString()
    write = LoggedTransaction(b"", 0, [store_key_item(b"key")], payload=changes)
    batches = [
        LogBatch("m2", 7, 1, (), (runtime.member.options.settings, ViewProposal(0, (WRITER,)))),
        LogBatch("m2", 7, 2, [write]),
    ]
    return [Delivery(number, encode_batch(each)) for number, each in enumerate(batches, start=1)]


async def test_what_came_before_a_message_that_fails_is_applied_once(tmp_path: Path) -> None:
    runtime = runtime_at(tmp_path)
    first, second = messages(runtime)
    await runtime._deliver([first])
    runtime.save()
    other_format = LogBatchHead(
        format_version=FORMAT_VERSION + 1, member="m2", incarnation=7, batch_number=3
    )
    with pytest.raises(UnsupportedFormat):
        await runtime._deliver([second, Delivery(3, other_format.SerializeToString())])
    assert rows_of(runtime).applier.drain(10)
    assert runtime.rows.open_snapshot().get(b"key") == b"value"
    runtime.close()
    del runtime

    again = runtime_at(tmp_path)
    assert again.member.log_sequence == 1, "the state that failed was not stored"
    assert again.rows.open_snapshot().version == 1, "the rows are ahead of it"
    await again._deliver([second])
    assert rows_of(again).applier.drain(10)
    assert again.rows.status().skipped_total == 1
    assert again.rows.open_snapshot().get(b"key") == b"value"
    again.close()


async def test_what_was_read_in_a_turn_is_visible_before_the_next_message_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("groupcert.members.host.turns.TURN_SECONDS", -1)
    runtime = runtime_at(tmp_path, workers=0)
    last = Delivery(3, encode_batch(LogBatch("m2", 7, 3, (), (Forgetting("m9"),))))
    delivering = asyncio.create_task(runtime._deliver([*messages(runtime), last]))
    seen = []
    while not delivering.done():
        seen.append((runtime.member.log_sequence, runtime.committed_version))
        await asyncio.sleep(0)
    await delivering
    assert (2, 1) in seen
    runtime.close()


async def test_a_restart_goes_on_counting_what_the_log_came_to(tmp_path: Path) -> None:
    runtime = runtime_at(tmp_path)
    await runtime._deliver(messages(runtime))
    runtime.close()
    del runtime
    again = runtime_at(tmp_path)
    counters = again.member.counters
    certified = Verdict.CERTIFIED
    assert (counters.log_verdicts[certified], counters.verdicts[certified]) == (1, 0)
    assert again.member.departures.named() == []
    again.close()


@pytest.mark.parametrize("in_doubt", [False, True])
async def test_a_decided_commit_is_told_but_by_a_member_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_doubt: bool
) -> None:
    runtime = runtime_at(tmp_path)
    member = runtime.member
    monkeypatch.setattr(runtime.rows, "append", lambda entries: None)  # nothing gets visible
    # Else a report goes by itself where a turn of the event loop takes long.
    monkeypatch.setattr(runtime._sender, "schedule", lambda: None)
    member.caught_up()
    for sequence in (1, 2):
        batch = member.publisher.next_batch()
        assert batch is not None
        encoded = encode_batch(batch)
        member.publisher.note_encoded(batch.batch_number, encoded)
        await runtime._deliver([Delivery(sequence, encoded)])
        if sequence == 1:
            assert member.state is MemberState.ONLINE
            write = LoggedTransaction(b"id", 0, [1])
            answer = runtime.submit([write])
    assert not answer.done()
    if in_doubt:
        runtime.fence(LogGap(expected=3, found=2))
        with pytest.raises(NotServing):
            answer.result()
    else:
        runtime.stop_serving(MemberState.ERROR, "the log is away")
        assert answer.result().version == 1
    runtime.close()


async def test_an_error_after_a_commit_that_nobody_waits_for_ends_the_life(tmp_path: Path) -> None:
    def fail(version: int) -> None:
        raise RuntimeError("a bug")

    runtime = runtime_at(tmp_path)
    runtime.member.committed = fail  # type: ignore[method-assign]  # what a commit sets off
    asyncio.get_running_loop().run_in_executor(None, runtime.on_committed, 1, 1)
    end = await asyncio.wait_for(runtime.run(), 5)
    assert repr(end.error) == "RuntimeError('a bug')"
    runtime.close()


async def test_a_member_leaves_before_its_log_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = runtime_at(tmp_path)
    monkeypatch.setattr(runtime._sender, "schedule", lambda: pytest.fail("nobody to send to"))
    await leave(runtime, 1.0)
    assert runtime.member.state is MemberState.LEFT
    runtime.close()


async def test_a_member_that_left_does_not_ask_to_join(tmp_path: Path) -> None:
    runtime = runtime_at(tmp_path)
    await leave(runtime, 1.0)
    catch_up = CatchUp(first_sequence=1, began_ms=0, messages_max=0, transactions_max=0)
    asking = come_near(runtime.member, runtime.order, catch_up, runtime._applied, 9)
    await asyncio.wait_for(asking, 5)
    assert runtime.member.state is MemberState.LEFT
    runtime.close()


async def test_after_a_save_that_failed_nothing_is_stored_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was to write would be lacking between what is stored before and after."""

    def refuse(batch: Batch) -> None:
        raise DiskFull(path=str(tmp_path), cause="a test")

    runtime = runtime_at(tmp_path)
    first, second = messages(runtime)
    await runtime._deliver([first])
    assert rows_of(runtime).applier.drain(10), "else it is the applier that is refused"
    with monkeypatch.context() as patch, pytest.raises(DiskFull):
        patch.setattr(runtime.store, "write", refuse)
        runtime.save()
    await runtime._deliver([second])
    with pytest.raises(DiskFull):
        runtime.save()
    assert rows_of(runtime).applier.drain(10)
    runtime.close()
    del runtime

    again = runtime_at(tmp_path)
    assert again.member.log_sequence == 0
    await again._deliver([first, second])
    assert again.rows.open_snapshot().get(b"key") == b"value"
    again.close()


async def test_reading_does_not_wait_for_an_applier_that_has_nothing_to_do(tmp_path: Path) -> None:
    """Though the queue is full: all of it was committed while it was being stored."""
    runtime = runtime_at(tmp_path, relay_queue_bytes_max=1)
    await runtime._deliver(messages(runtime))
    assert rows_of(runtime).applier.drain(10)
    runtime._state_store.save(runtime.member, runtime._unsaved, applied_position=0)
    assert runtime.relay_queue.is_full
    assert not runtime._is_full
    runtime.close()
