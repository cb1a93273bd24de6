"""Copies of a member that runs: as of one place, limited in number and time, and safe to apply.

The danger that the last test looks for: at its donor a local transaction has no stamps, as nothing
in the donor's relay queue waits for it. In a copy it waits in the queue itself, and what depends on
it has stamps that do not say so.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.applier.targets.rocksdb import applied_intervals
from groupcert.certifier.errors import NotServing
from groupcert.certifier.storage.store import ROCKSDB_FOLDER, Store, StoreIdentity
from groupcert.certifier.write_set import store_key_item
from groupcert.members.core.log_records import Control, LogBatch, LoggedTransaction, ViewProposal
from groupcert.members.core.views import MemberState, ViewMember
from groupcert.members.errors.membership import RowsNotKept
from groupcert.members.errors.recovery import CopyExpired, TooManyCopies
from groupcert.members.recovery import copies as copies_module
from groupcert.members.recovery.copies import OF_ROWS, Copies
from groupcert.members.recovery.manifest import CopyManifest, verify_content, verify_files
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.total_order.port import Delivery
from groupcert.members.wire.log_batches import encode_batch
from groupcert.v1.transaction_pb2 import Changes
from tests.integration.waiting import wait_for
from tests.members.process.test_lifecycle import config_of
from tests.members.rows import rows_of
from tests.sim.memory_order import MemoryLog, MemoryOrder

M2 = ViewMember(name="m2", incarnation=7, address="127.0.0.1:1")
KEY = b"row"


def runtime_of(name: str, folder: Path, log: MemoryLog) -> MemberRuntime:
    config = config_of(folder, member=name, certification_log=folder / "log")
    return MemberRuntime(config, MemoryOrder(log), lambda state: None)


def write_of(value: bytes, snapshot: int) -> LoggedTransaction:
    changes = Changes(put_keys=[KEY], put_values=[value]).SerializeToString()
    return LoggedTransaction(b"", snapshot, [store_key_item(KEY)], payload=changes)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[MemberRuntime]:
    """A member that is ONLINE, alone in its group."""
    runtime = runtime_of("m1", folder, MemoryLog("g"))
    task = asyncio.create_task(runtime.run())
    while runtime.member.state is not MemberState.ONLINE:
        assert not task.done()
        await asyncio.sleep(0.01)
    try:
        yield runtime
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        runtime.close()


async def test_a_copy_has_what_was_committed_before_it(tmp_path: Path) -> None:
    (tmp_path / "copies" / "stale").mkdir(parents=True)
    async with running(tmp_path / "m1") as runtime:
        copies = Copies(tmp_path / "copies")
        await runtime.submit([write_of(b"before", 0)])
        copy = await copies.open(runtime, "m3")
        await runtime.submit([write_of(b"after", 1)])
        assert not (tmp_path / "copies" / "stale").exists()
        assert copies.get(copy.copy_id) is copy
        assert copies.log_sequences(runtime.member.view) == [copy.manifest.log_sequence]
        verify_files(copy.folder, copy.manifest)
        verify_content(copy.folder, copy.manifest)
        assert (copy.manifest.member, copy.manifest.version) == ("m1", 1)
        assert copy.manifest.gtids().count() == 1
        Store(copy.folder, StoreIdentity(group="g", member="m3"), adopt=True).close()
        joiner = runtime_of("m3", copy.folder, MemoryLog("g"))
        assert joiner.member.log_sequence == copy.manifest.log_sequence
        assert joiner.member.certifier.digest().hex() == copy.manifest.certification_digest
        assert joiner.member.view == runtime.member.view
        assert rows_of(joiner).applier.drain(10)
        assert joiner.rows.open_snapshot().get(KEY) == b"before"
        joiner.close()
        await copies.close(copy.copy_id)
        assert not copy.folder.exists()
        with pytest.raises(CopyExpired):
            copies.get(copy.copy_id)


async def test_a_copy_for_a_member_without_rows_has_none(tmp_path: Path) -> None:
    """Neither has one that is made of it; for a member with rows it makes none."""
    async with running(tmp_path / "m1") as runtime:
        copies = Copies(tmp_path / "copies")
        for number in range(20):
            await runtime.submit([write_of(b"%d" % number, number)])
        copy = await copies.open(runtime, "m3", without_rows=True)
        verify_files(copy.folder, copy.manifest)
        verify_content(copy.folder, copy.manifest)
        Store(copy.folder, StoreIdentity(group="g", member="m3"), adopt=True).close()
        config = config_of(copy.folder, member="m3", rows="none")
        joiner = MemberRuntime(config, MemoryOrder(MemoryLog("g")), lambda state: None)
        checkpoint = joiner.rows.checkpoint()
        assert checkpoint is not None
        assert (checkpoint.version, joiner.member.log_sequence) == (20, copy.manifest.log_sequence)
        assert checkpoint.gtid_executed == copy.manifest.gtids()
        assert joiner.member.certifier.digest() == runtime.member.certifier.digest()
        assert [family for family in OF_ROWS if next(joiner.store.scan(family), None)] == []
        joiner.member.state = MemberState.ONLINE
        with pytest.raises(RowsNotKept):
            await copies.open(joiner, "m4")
        await copies.open(joiner, "m5", without_rows=True)
        joiner.close()


async def test_copies_are_limited_in_number(tmp_path: Path) -> None:
    async with running(tmp_path / "m1") as runtime:
        copies = Copies(tmp_path / "copies", copies_max=2)
        one, two = await asyncio.gather(copies.open(runtime, "m2"), copies.open(runtime, "m3"))
        with pytest.raises(TooManyCopies):
            await copies.open(runtime, "m4")
        await copies.close(one.copy_id)
        await copies.open(runtime, "m4")
        assert two.folder.is_dir()


async def test_a_copy_that_nobody_reads_goes(tmp_path: Path) -> None:
    async with running(tmp_path / "m1") as runtime:
        copies = Copies(tmp_path / "copies", lease_seconds=0)
        copy = await copies.open(runtime, "m3")
        await asyncio.to_thread(wait_for, "no copy", lambda: not copy.folder.exists())
        with pytest.raises(CopyExpired):
            copies.get(copy.copy_id)
        assert not copies.log_sequences(runtime.member.view)


async def test_the_log_is_kept_for_a_copy_from_its_place_on_until_its_reader_has_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    async with running(tmp_path / "m1") as runtime:
        copies = Copies(tmp_path / "copies")
        view = runtime.member.view

        def described_late(manifest: CopyManifest, folder: Path) -> CopyManifest:
            seen.append(copies.log_sequences(view))
            return manifest

        monkeypatch.setattr(copies_module, "described", described_late)
        copy = await copies.open(runtime, "m2")
        place = copy.manifest.log_sequence
        await copies.close(copy.copy_id, reads_on=True)
        assert seen == [[place]], "while checksums are made"
        assert copies.log_sequences(view) == [place], "while the joiner reads on"
        assert copies.log_sequences(replace(view, members=(*view.members, M2))) == []
        assert copies.log_sequences(view) == [], "it has joined once"
        copy = await copies.open(runtime, "m1")
        await copies.close(copy.copy_id, reads_on=True)
        assert copies.log_sequences(view) == [place], "an earlier run of it is in the view"
        copy = await copies.open(runtime, "groupcert backup")
        await copies.close(copy.copy_id)
        assert copies.log_sequences(view) == [place]


async def test_the_log_is_kept_for_who_read_a_copy_to_its_end_and_could_not_say_so(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "m1") as runtime:
        copies = Copies(tmp_path / "copies", lease_seconds=1)
        half, whole = await copies.open(runtime, "m2"), await copies.open(runtime, "m3")
        for copy, parts in ((half, 1), (whole, 2)):
            file = [each for each in copy.manifest.files if each.bytes][-1]
            for part in range(1, parts + 1):
                copies.get(copy.copy_id).sent(file.name, file.bytes * part // 2)
        folders = [half.folder, whole.folder]
        await asyncio.to_thread(wait_for, "no copy", lambda: not any(map(Path.exists, folders)))
        assert copies.log_sequences(runtime.member.view) == [whole.manifest.log_sequence]


async def test_the_log_is_kept_for_a_joiner_for_so_long_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies_module, "READING_SECONDS", 0)
    async with running(tmp_path / "m1") as runtime:
        copies = Copies(tmp_path / "copies")
        copy = await copies.open(runtime, "m3")
        await copies.close(copy.copy_id, reads_on=True)
        await asyncio.sleep(0.01)
        assert copies.log_sequences(runtime.member.view) == []


async def test_only_a_member_that_is_online_gives_copies(tmp_path: Path) -> None:
    runtime = runtime_of("m1", tmp_path / "m1", MemoryLog("g"))
    copies = Copies(tmp_path / "copies")
    with pytest.raises(NotServing, match="RECOVERING"):
        await copies.open(runtime, "m3")
    runtime.close()
    assert not copies.log_sequences(runtime.member.view)


async def test_a_copy_is_not_made_of_a_member_that_stops_meanwhile(tmp_path: Path) -> None:
    async with running(tmp_path / "m1") as runtime:
        copies = Copies(tmp_path / "copies")
        opening = asyncio.create_task(copies.open(runtime, "m3"))
        await asyncio.sleep(0)
        runtime.stop_serving(MemberState.LEFT, "stopped by its operator")
        with pytest.raises(NotServing, match="LEFT"):
            await opening
        assert not copies.log_sequences(runtime.member.view)


async def test_what_waits_for_a_donors_local_transaction_waits_in_the_copy(tmp_path: Path) -> None:
    donor = runtime_of("m1", tmp_path / "m1", MemoryLog("g"))
    donor.rows.stop(10)
    me = donor.member.me

    def message(number: int, who: ViewMember, *parts: LoggedTransaction | Control) -> Delivery:
        writes = [part for part in parts if isinstance(part, LoggedTransaction)]
        controls = [part for part in parts if not isinstance(part, LoggedTransaction)]
        batch = LogBatch(who.name, who.incarnation, number, writes, controls)
        return Delivery(number, encode_batch(batch))

    donor.member.options = replace(donor.member.options, looks_on=True)
    settings = donor.member.options.settings
    await donor._deliver(
        [
            message(1, M2, settings, ViewProposal(0, (M2,))),
            message(2, me, ViewProposal(1, (me, M2))),
            message(3, M2, write_of(b"remote", 0)),
            message(4, me, write_of(b"local", 1)),
            message(5, M2, write_of(b"dependent", 2)),
        ]
    )
    donor.save()
    queued = [entry for group in RelayQueue(donor.store).load() for entry in group]
    stamps = [(entry.local, entry.last_committed, entry.sequence_number) for entry in queued]
    views, of_others = [(False, 0, 0)] * 2, [(False, 1, 2), (True, 0, 0), (False, 1, 3)]
    assert stamps == [*views, *of_others], (
        "by their stamps alone the first and the last one may run at the same time"
    )
    copy = tmp_path / "m3"
    copy.mkdir()
    donor.store.checkpoint(copy / ROCKSDB_FOLDER)
    donor.close()

    Store(copy, StoreIdentity(group="g", member="m3"), adopt=True).close()
    joiner = runtime_of("m3", copy, MemoryLog("g"))
    await joiner._deliver([message(6, me, write_of(b"later at the donor", 3))])
    assert rows_of(joiner).applier.drain(10)
    intervals = list(applied_intervals(joiner.store))
    assert [each.version for each in intervals] == [1, 2, 3, 4]
    for before, after in pairwise(intervals):
        assert before.committed <= after.started, "one runs after the other"
    assert joiner.rows.open_snapshot().get(KEY) == b"later at the donor"
    joiner.close()
