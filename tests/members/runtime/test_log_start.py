"""A member meets a log that was rebuilt: it goes on if that is from its own state; on a log in
memory.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from groupcert.certifier.errors import LogServerUnavailable
from groupcert.certifier.storage.store import Family, Store, StoreIdentity
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.core.views import MemberState
from groupcert.members.runtime.log_start import LOG_FENCES
from groupcert.members.runtime.state_store import FENCE_KEY
from groupcert.members.total_order.port import Continuation
from groupcert.members.wire.row_changes import encode_changes
from tests.members.process.test_lifecycle import Process, living
from tests.sim.memory_order import MemoryLog
from tests.waiting import until


def put(key: bytes, snapshot: int, item: int) -> LoggedTransaction:
    """A transaction that puts a row."""
    return LoggedTransaction(key, snapshot, (item,), payload=encode_changes([key], [key]))


def continuation_of(log: MemoryLog, process: Process, **others: object) -> Continuation:
    """The log goes on from what a member has read of it."""
    member = process.runtime.member
    continues = Continuation(
        log=log.state().identity,
        member="m1",
        log_sequence=member.log_sequence,
        digest=member.certifier.digest().hex(),
        last_sequence=member.log_sequence,
    )
    return replace(continues, **others)  # type: ignore[arg-type]  # fields by name


def fence(folder: Path, explanation: str) -> None:
    """Fences a member that is stopped."""
    with Store(folder, StoreIdentity(group="g", member="m1")) as store:
        batch = store.batch()
        batch.put(Family.META, FENCE_KEY, explanation.encode())
        store.write(batch)


async def stopped(folder: Path, log: MemoryLog) -> Process:
    """A member that has committed a transaction, and was stopped."""
    async with living(folder, log) as process:
        await process.online()
        await process.runtime.submit([put(b"row", 0, 1)])
    return process


async def is_fenced(folder: Path, log: MemoryLog) -> str:
    """Why a member is fenced that starts."""
    async with living(folder, log) as process:
        await until(lambda: process.runtimes and process.state is MemberState.FENCED)
        return process.runtime.member.reason


async def test_a_member_goes_on_with_a_log_that_was_rebuilt_from_its_state(tmp_path: Path) -> None:
    log = MemoryLog("g")
    before = await stopped(tmp_path, log)
    log.create(continuation_of(log, before))
    async with living(tmp_path, log) as process:
        await process.online()
        assert process.runtime.member.log_sequence > before.runtime.member.log_sequence
        await process.runtime.submit([put(b"more", 1, 2)])
        assert process.runtime.committed_version == 2
    async with living(tmp_path, log) as process:
        await process.online()


@pytest.mark.parametrize("reason", ["FOREIGN_LOG", "EXTRA_TRANSACTIONS"])
async def test_the_fence_that_the_loss_of_the_log_brought_ends(tmp_path: Path, reason: str) -> None:
    log = MemoryLog("g")
    assert reason in LOG_FENCES
    before = await stopped(tmp_path, log)
    continues = continuation_of(log, before)
    fence(tmp_path, f"{reason}: the log has lost something")
    log.create()
    assert f"m1 fenced itself before ({reason}: " in await is_fenced(tmp_path, log)
    log.create(continues)
    async with living(tmp_path, log) as process:
        await process.online()


async def test_another_fence_does_not_end(tmp_path: Path) -> None:
    log = MemoryLog("g")
    before = await stopped(tmp_path, log)
    fence(tmp_path, "DIGEST_MISMATCH: others have another digest")
    log.create(continuation_of(log, before))
    assert "DIGEST_MISMATCH" in await is_fenced(tmp_path, log)


async def test_who_has_another_state_there_is_fenced(tmp_path: Path) -> None:
    log = MemoryLog("g")
    before = await stopped(tmp_path, log)
    continues = continuation_of(log, before)
    log.create(replace(continues, digest="00" * 8))
    reason = await is_fenced(tmp_path, log)
    assert reason.startswith(f"DIGEST_MISMATCH: digest at position {continues.log_sequence} is")


async def test_who_has_read_more_than_the_log_goes_on_from_is_fenced(tmp_path: Path) -> None:
    log = MemoryLog("g")
    before = await stopped(tmp_path, log)
    continues = continuation_of(log, before)
    # The last message has no transaction: the member reported, or left.
    last = continues.log_sequence - 1
    log.create(replace(continues, log_sequence=last, last_sequence=last))
    assert (await is_fenced(tmp_path, log)).startswith("FOREIGN_LOG")


async def test_who_has_certified_more_names_what_that_is(tmp_path: Path) -> None:
    log = MemoryLog("g")
    before = await stopped(tmp_path, log)
    log.create(continuation_of(log, before, log_sequence=1, last_sequence=1))
    reason = await is_fenced(tmp_path, log)
    assert reason.startswith("EXTRA_TRANSACTIONS: member m1 has executed '")


async def test_a_log_that_is_not_rebuilt_to_its_end_is_not_used(tmp_path: Path) -> None:
    log = MemoryLog("g")
    before = await stopped(tmp_path, log)
    last = before.runtime.member.log_sequence
    log.create(continuation_of(log, before, last_sequence=last + 2))
    words = f"rebuilt to message {last} of {last + 2}"
    with pytest.raises(LogServerUnavailable, match=words):
        async with living(tmp_path, log) as process:
            await until(lambda: process.runtimes and process.runtime.closed)
