"""Rows that are ahead of every stored state, as where all members were killed, are not lost.

Method: a member stores its state no more and commits on; the copy of its store is what a kill would
leave. Its log is gone, and made again from that copy alone.
"""

from pathlib import Path

import pytest

from groupcert.certifier.records import Verdict
from groupcert.certifier.storage.store import ROCKSDB_FOLDER
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.rebuild.holding import holding
from groupcert.members.rebuild.plan import plan_of
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.total_order.port import Continuation
from groupcert.members.wire.row_changes import encode_changes
from tests.members.process.test_lifecycle import Process, living
from tests.sim.memory_order import MemoryLog
from tests.waiting import until


def put(key: bytes, snapshot: int, item: int = 0) -> LoggedTransaction:
    """A transaction that puts a row."""
    return LoggedTransaction(
        key, snapshot, (item or hash_of(key),), payload=encode_changes([key], [key])
    )


def hash_of(key: bytes) -> int:
    return int.from_bytes(key.ljust(8)[:8], "big")


def copied(process: Process, folder: Path) -> Path:
    """What a kill would leave of a member now."""
    folder.mkdir()
    process.runtime.store.checkpoint(folder / ROCKSDB_FOLDER)
    return folder


def rows_of(process: Process) -> dict[bytes, bytes]:
    return dict(process.runtime.rows.open_snapshot().scan())


def rebuilt_log(continues: Continuation, messages: list[bytes]) -> MemoryLog:
    """A log as `groupcert log rebuild` makes it."""
    log = MemoryLog("g")
    log.create()
    log.create(continues)
    for number, message in enumerate(messages, 1):
        log.append(str(number), message)
    return log


async def test_transactions_that_only_rows_and_binary_log_have_are_in_the_rebuilt_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(tmp_path / "m1") as process:
        await process.online()
        await process.runtime.submit([put(b"first", 0)])
        process.runtime.save()
        behind = copied(process, tmp_path / "behind")
        monkeypatch.setattr(MemberRuntime, "save", lambda runtime: None)
        later = [put(b"second", 1), put(b"lost", 0, hash_of(b"first")), put(b"third", 1)]
        decided = await process.runtime.submit(later)
        verdicts = [each.verdict for each in decided.outcomes if each]
        assert verdicts == [Verdict.CERTIFIED, Verdict.CONFLICT, Verdict.CERTIFIED]
        await process.runtime.submit([put(b"fourth", 2)])
        rows, gtids = rows_of(process), process.runtime.gtid_executed()
        killed = copied(process, tmp_path / "killed")
    monkeypatch.undo()
    with holding(killed) as ahead:
        assert (ahead.version, ahead.last_version) == (1, 4)
        plan = plan_of([ahead], [])
        assert plan.executed == gtids
        assert (plan.tail.rebuilt.count(), plan.tail.lost.count()) == (3, 0)
        continues, messages = plan.continues, plan.tail.messages
    assert len(messages) == continues.last_sequence - continues.log_sequence > 0
    digests = set()
    for folder in (killed, behind):
        log = rebuilt_log(continues, messages)
        async with living(folder, log) as process:
            await process.online()
            await until(lambda: rows_of(process) == rows)
            assert process.runtime.gtid_executed() == gtids
            digests.add(process.runtime.member.digests.find(continues.last_sequence))
            (again,) = (await process.runtime.submit([put(b"after", 4)])).outcomes
            assert again is not None and again.verdict is Verdict.CERTIFIED
    assert len(digests) == 1


async def test_rows_without_a_binary_log_are_told_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(tmp_path / "m1", binary_log=False) as process:
        await process.online()
        await process.runtime.submit([put(b"first", 0)])
        process.runtime.save()
        monkeypatch.setattr(MemberRuntime, "save", lambda runtime: None)
        await process.runtime.submit([put(b"second", 1)])
        killed = copied(process, tmp_path / "killed")
    with holding(killed) as ahead:
        plan = plan_of([ahead], [])
        assert not plan.tail.messages
        assert plan.tail.lost.count() == 1
        (part,) = plan.members
        assert part.extra == plan.tail.lost
