"""A member's certification log on its way to files: nothing is lost, and nothing is there twice.

The method: a runtime reads messages from a log in memory, and ends at the worst moments; then the
files are read, with their numbers and their chain.
"""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from groupcert.applier.queue.job import Job
from groupcert.applier.targets.rocksdb import RocksDbTarget, RowChanges
from groupcert.certifier.history.schema import Cursor, position_at
from groupcert.certifier.position import log_sequence_of
from groupcert.certifier.storage.store import ROCKSDB_FOLDER, Family, StoreIdentity
from groupcert.certifier.write_set import store_key_item
from groupcert.members.certification_log import files as certification_log
from groupcert.members.certification_log import writer as certification_log_writer
from groupcert.members.certification_log.outbox import CURSOR_KEY, Outbox
from groupcert.members.certification_log.writer import CertificationLogWriter
from groupcert.members.core.log_records import (
    Control,
    LogBatch,
    LoggedTransaction,
    MemberReport,
    ViewProposal,
)
from groupcert.members.core.views import MemberState, ViewMember
from groupcert.members.host.sync import sync
from groupcert.members.process import lifecycle
from groupcert.members.recovery import store_swap
from groupcert.members.recovery.copies import manifest_of
from groupcert.members.runtime import opening
from groupcert.members.runtime.observation import observe
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.services.group_status import group_status
from groupcert.members.total_order.port import Delivery, LogIdentity
from groupcert.members.wire.log_batches import encode_batch
from groupcert.members.wire.row_changes import encode_changes
from tests.members.certification_logs import History, assert_applied, histories_in
from tests.members.process.test_lifecycle import living
from tests.members.rows import rows_of
from tests.members.runtime.test_runtime import runtime_at
from tests.waiting import SECONDS_MAX

FOREVER_SECONDS = 900.0
WRITER = ViewMember(name="m2", incarnation=7, address="127.0.0.1:1")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certification_log_writer, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(certification_log_writer, "RETRY_SECONDS", 0.01)


def member_at(tmp_path: Path, **settings: Any) -> MemberRuntime:
    """A member with its log in the folder `log`."""
    return runtime_at(tmp_path / "data", certification_log=tmp_path / "log", **settings)


def message(
    number: int, *transactions: LoggedTransaction, controls: tuple[Control, ...] = ()
) -> Delivery:
    """The next message of the member m2."""
    return Delivery(number, encode_batch(LogBatch("m2", 7, number, transactions, controls)))


def founding(runtime: MemberRuntime) -> Delivery:
    """The first message: settings, and a view."""
    settings = runtime.member.options.settings
    return message(1, controls=(settings, ViewProposal(0, (WRITER,))))


def write(key: str, snapshot: int) -> LoggedTransaction:
    row = key.encode()
    changes = encode_changes([row], [b"value"])
    return LoggedTransaction(row, snapshot, [store_key_item(row)], payload=changes)


async def feed(runtime: MemberRuntime, *numbers: int) -> None:
    """Messages with two transactions each, the second of which conflicts with the first."""
    for number in numbers:
        newest = runtime.member.certifier.window.newest_version
        again = write(f"other/{number}", newest)._replace(write_set=[store_key_item(b"shared")])
        first = write(f"key/{number}", newest)._replace(write_set=[store_key_item(b"shared")])
        await runtime._deliver([message(number, first, again)])
    assert rows_of(runtime).applier.drain(10)


async def decided(tmp_path: Path, *numbers: int, **settings: Any) -> MemberRuntime:
    """A member that has read the first message, and those with two transactions each."""
    runtime = member_at(tmp_path, **settings)
    await runtime._deliver([founding(runtime)])
    await feed(runtime, *numbers)
    return runtime


def outbox_of(runtime: MemberRuntime) -> Outbox:
    """What waits for its files."""
    assert runtime.history_writer is not None
    return runtime.history_writer.outbox


def history_in(folder: Path) -> History:
    """The one history in a folder."""
    (rows,) = histories_in(folder).values()
    return rows


async def joiner_folder(donor: MemberRuntime, folder: Path) -> Path:
    """A joiner's folder with a copy of a member's state; the member is closed."""
    donor._state_store.check_identity(LogIdentity(name="stream", created="now"))
    donor.save()
    incoming = store_swap.begin(folder)
    donor.store.checkpoint(incoming / ROCKSDB_FOLDER)
    manifest = manifest_of("g", donor.member, donor.store)
    donor.close()
    store_swap.adopt(folder, manifest, StoreIdentity(group="g", member="m1"))
    return folder


def kinds(rows: list[dict[str, Any]]) -> list[str]:
    return [row.get("verdict") or row["kind"] for row in rows]


def wait_until(happened: Any) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_member_that_stops_has_written_everything(tmp_path: Path) -> None:
    runtime = await decided(tmp_path, 2, 3)
    runtime.close()
    rows = history_in(tmp_path / "log")
    expected = ["start", "settings", "view_change", *["certified", "conflict"] * 2]
    assert kinds(rows) == expected
    assert_applied(rows)
    assert [log_sequence_of(position_at(row["place"])) for row in rows] == [1, 1, 1, 2, 2, 3, 3]

    again = member_at(tmp_path)
    assert again.member.history_cursor == Cursor(7, rows[-1]["place"], rows[-1]["chain"])
    for family in (Family.DECISIONS, Family.HISTORY):
        assert len(list(again.store.scan(family))) <= 1, "what is written has left the store"
    await feed(again, 4)
    again.close()
    (longer,) = histories_in(tmp_path / "log").values()
    assert longer[:7] == rows
    assert kinds(longer[7:]) == ["certified", "conflict"]
    assert len(list((tmp_path / "log").iterdir())) == 2


def executed(runtime: MemberRuntime) -> int:
    """How many entries the applier's workers have executed."""
    return sum(each.executed_total for each in runtime.rows.status().workers)


async def test_the_log_tells_an_execution_from_the_wait_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The applier executes the second transaction while the first is held, and commits it after
    that one.
    """
    held, opened = threading.Event(), threading.Event()
    execute = RocksDbTarget.execute

    def hold_first(target: RocksDbTarget, job: Job[RowChanges]) -> RowChanges:
        if job.entries[0].version == 1:
            held.set()
            assert opened.wait(SECONDS_MAX)
        return execute(target, job)

    monkeypatch.setattr(RocksDbTarget, "execute", hold_first)
    runtime = member_at(tmp_path, workers=2)
    await runtime._deliver([founding(runtime), message(2, write("first", 0))])
    assert held.wait(SECONDS_MAX)
    before = executed(runtime)
    await runtime._deliver([message(3, write("second", 0))])
    wait_until(lambda: executed(runtime) > before)
    between_us = time.time_ns() // 1000
    opened.set()
    assert rows_of(runtime).applier.drain(SECONDS_MAX)
    runtime.close()
    rows = history_in(tmp_path / "log")
    assert_applied(rows)
    first, second = (row for row in rows if row["kind"] == "transaction")
    assert second["executed_us"] <= between_us <= first["executed_us"]
    assert first["executed_us"] <= first["committed_us"] <= second["committed_us"]


async def test_what_a_crash_left_unsaved_is_decided_again_and_written_once(tmp_path: Path) -> None:
    runtime = await decided(tmp_path, 2, certification_log_file_bytes=1)
    runtime.save()
    wait_until(lambda: runtime.member.history_cursor.number == 5)
    await feed(runtime, 3)
    runtime.is_whole = False  # So that closing saves no more than a crash would have.
    runtime.close()

    again = member_at(tmp_path)
    assert again.member.log_sequence == 2
    assert again.committed_version == 2, "the rows are ahead of the state"
    await feed(again, 3, 4)
    again.close()
    rows = history_in(tmp_path / "log")
    assert kinds(rows[3:]) == ["certified", "conflict"] * 3
    assert_applied(rows)


async def test_a_file_whose_end_was_not_noted_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*given: object) -> bool:
        raise OSError("killed here")

    with monkeypatch.context() as killed:
        killed.setattr(Outbox, "written", crash)
        runtime = await decided(tmp_path, 2)
        runtime.close()
        del runtime
    (name,) = (path.name for path in (tmp_path / "log").iterdir())
    (tmp_path / "log" / f"{name}.unfinished").write_bytes(b"half")
    (before,) = histories_in_one(tmp_path / "log" / name)

    again = member_at(tmp_path)
    await feed(again, 3)
    again.close()
    assert [path.name for path in (tmp_path / "log").iterdir()] == [name]
    rows = history_in(tmp_path / "log")
    assert rows[: len(before)] == before
    assert len(rows) == len(before) + 2


def histories_in_one(path: Path) -> list[list[dict[str, Any]]]:
    """The history of a file beside which there may be others."""
    alone = path.parent.with_name("alone")
    alone.mkdir()
    (alone / path.name).write_bytes(path.read_bytes())
    return list(histories_in(alone).values())


async def test_a_folder_that_takes_nothing_stops_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.write_bytes(b"a file in its place")
    runtime = await decided(tmp_path, 2, 3, certification_log_file_bytes=1)
    runtime.save()
    wait_until(lambda: group_status(observe(runtime)).observer.certification_log_error)
    failing = group_status(observe(runtime)).observer
    folder.unlink()
    wait_until(lambda: not group_status(observe(runtime)).observer.certification_log_error)
    wait_until(lambda: not group_status(observe(runtime)).observer.certification_log_waiting_rows)
    observer = group_status(observe(runtime)).observer
    assert "log" in failing.certification_log_error
    for told, waiting, written in ((failing, 7, 0), (observer, 0, 7)):
        assert told.certification_log_waiting_rows == waiting
        assert told.certification_log_written_rows == written
    assert (folder / observer.certification_log_last_file).is_file()
    await feed(runtime, 4)
    runtime.close()
    rows = history_in(folder)
    assert kinds(rows[3:]) == ["certified", "conflict"] * 3


async def test_what_waits_too_long_is_given_up_and_another_history_begins(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.write_bytes(b"a file in its place")
    runtime = member_at(tmp_path)
    outbox = outbox_of(runtime)
    outbox.bytes_max = 500
    await runtime._deliver([founding(runtime)])
    await feed(runtime, 2, 3, 4)
    runtime.save()
    given_up = outbox.history
    assert outbox.is_full
    await feed(runtime, 5)
    with capture_logs() as events:
        runtime.save()
    (told,) = events
    assert told["rows"] == 11, "those that were not stored yet are among them"
    assert "more than certification_log_waiting_bytes_max = 500 waited" in told["text"]
    assert outbox.history != given_up
    assert outbox.waiting_rows == 1
    folder.unlink()
    await feed(runtime, 6)
    runtime.close()
    rows = history_in(folder)
    assert kinds(rows) == ["start", "certified", "conflict"]
    assert (rows[0]["version"], log_sequence_of(position_at(rows[0]["place"]))) == (4, 6)
    assert rows[0]["history"] != given_up


async def test_a_file_that_is_written_while_its_history_is_given_up_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The writer's own thread does nothing before the end: it would write what fills the outbox.
    monkeypatch.setattr(certification_log_writer, "POLL_SECONDS", 3_600)
    runtime = await decided(tmp_path, 2, certification_log_file_seconds=3_600)
    runtime.save()
    outbox = outbox_of(runtime)
    taken = outbox.take(runtime.committed_version)
    rows = taken.rows()
    first = next(rows)
    outbox.bytes_max = 0
    runtime.save()
    over = Cursor(1, int(str(first["place"])), b"")
    assert not outbox.written(taken, over), "its history is over"
    fresh = outbox.take(runtime.committed_version)
    assert [row["kind"] for row in fresh.rows()] == ["start"]
    taken.cursor = Cursor()
    assert list(taken.rows()) == []
    outbox.bytes_max = 1 << 30
    runtime.close()
    (found,) = histories_in(tmp_path / "log").values()
    assert kinds(found) == ["start"]


async def test_rows_wait_until_their_transactions_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await decided(tmp_path, 2, certification_log_file_bytes=1)
    # Nothing gets visible.
    monkeypatch.setattr(runtime.rows, "append", lambda entries: None)
    await runtime._deliver([message(3, write("key/3", 1), write("key/4", 1))])
    runtime.save()
    outbox = outbox_of(runtime)
    wait_until(lambda: outbox.cursor.number == 5)
    await asyncio.sleep(0.1)
    assert (outbox.cursor.number, outbox.waiting_rows) == (5, 2)
    runtime.close()
    monkeypatch.undo()

    again = member_at(tmp_path)
    assert outbox_of(again).waiting_rows == 2
    assert rows_of(again).applier.drain(SECONDS_MAX)
    again.close()
    rows = history_in(tmp_path / "log")
    assert kinds(rows[3:]) == ["certified", "conflict", "certified", "certified"]
    assert_applied(rows)


@pytest.mark.slow
async def test_files_end_by_time(tmp_path: Path) -> None:
    runtime = member_at(tmp_path, certification_log_file_seconds=1)
    await runtime._deliver([founding(runtime)])
    for number in (2, 3):
        await feed(runtime, number)
        runtime.save()
        written = runtime.member.history_cursor.number
        wait_until(lambda written=written: runtime.member.history_cursor.number > written)
    assert len(list((tmp_path / "log").iterdir())) >= 2
    runtime.close()
    rows = history_in(tmp_path / "log")
    assert kinds(rows[3:]) == ["certified", "conflict"] * 2


async def test_a_history_ends_where_the_log_is_switched_off(tmp_path: Path) -> None:
    runtime = await decided(tmp_path, 2)
    runtime.close()
    without = runtime_at(tmp_path / "data")
    assert without.store.get(Family.META, CURSOR_KEY) is None
    await feed(without, 3)
    assert not list(without.store.scan(Family.DECISIONS))
    without.close()
    again = member_at(tmp_path)
    await feed(again, 4)
    again.close()
    first, second = histories_in(tmp_path / "log").values()
    assert kinds(first)[-2:] == ["certified", "conflict"]
    assert kinds(second) == ["start", "certified", "conflict"]
    assert (first[-1]["version"], second[0]["version"]) == (1, 2)


async def test_a_copy_of_a_state_begins_a_history_of_its_own(tmp_path: Path) -> None:
    donor = await decided(tmp_path, 2, 3, certification_log_file_seconds=3_600)
    folder = await joiner_folder(donor, tmp_path / "joiner")
    assert store_swap.finish(folder)
    joiner = runtime_at(folder, certification_log=tmp_path / "joiner-log")
    await feed(joiner, 4)
    joiner.close()
    rows = history_in(tmp_path / "joiner-log")
    assert kinds(rows) == ["start", "certified", "conflict"]
    assert (rows[0]["version"], rows[0]["sequence_number"]) == (2, 3)
    (donors,) = histories_in(tmp_path / "log").values()
    assert donors[0]["history"] != rows[0]["history"]


async def test_each_life_of_a_process_goes_on_with_the_history(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    async with living(tmp_path / "data", certification_log=folder) as process:
        await process.online()
        await process.runtime.submit((write("one", process.runtime.committed_version),))
        process.runtime.member.expel("m1")
        process.runtime._sender.schedule()
        await process.online(runs=2)
        await process.runtime.submit((write("two", process.runtime.committed_version),))
        await asyncio.sleep(0.05)
    rows = history_in(folder)
    assert kinds(rows).count("certified") == 2
    assert kinds(rows).count("view_change") == 4
    assert_applied(rows)


async def test_numbers_that_no_column_takes_end_no_life(tmp_path: Path) -> None:
    """They are in the log: a release that does not refuse them has put them there."""
    runtime = member_at(tmp_path)
    await runtime._deliver([founding(runtime)])
    most = 2**64 - 1
    report = MemberReport(0, 0, 1, runtime.member.digests.at(1), 0, most, b"chain")
    await runtime._deliver([message(2, write("key", most), controls=(report,))])
    runtime.close()
    await asyncio.sleep(0)
    assert not runtime._failure.done()
    rows = history_in(tmp_path / "log")
    assert kinds(rows[3:]) == ["refused", "report"]
    assert rows[3]["snapshot_version"] == rows[4]["reported_place"] == 2**63 - 1


@pytest.mark.slow
async def test_a_folder_that_hangs_holds_up_no_life_and_hears_no_more_of_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run's writer hangs before its file has its name, and goes on after its end. Who
    waited for it would wait for longer than any test may take.
    """
    hangs, goes_on = threading.Event(), threading.Event()
    log = tmp_path / "log"
    publishers: list[threading.Thread] = []

    def hang(path: Path) -> None:
        if path == log:  # A file has its name in it.
            publishers.append(threading.current_thread())
        elif path.suffix == ".unfinished" and not hangs.is_set():
            hangs.set()
            goes_on.wait(FOREVER_SECONDS)
        sync(path)

    monkeypatch.setattr(certification_log, "sync", hang)
    async with living(
        tmp_path / "data", certification_log=log, certification_log_file_seconds=1
    ) as process:
        await process.online()
        first = process.runtime
        await first.submit((write("one", first.committed_version),))
        assert await asyncio.to_thread(hangs.wait, SECONDS_MAX)
        with monkeypatch.context() as patient:
            for module in (lifecycle, opening):
                patient.setattr(module, "LOG_STOP_SECONDS", FOREVER_SECONDS)
            first.member.expel("m1")
            first._sender.schedule()
            while first is process.runtime or process.state is not MemberState.ONLINE:
                await asyncio.sleep(0.01)
                if not first.closed:
                    assert first.rows.open_snapshot().get(b"one") == b"value"
        assert isinstance(first.history_writer, CertificationLogWriter)
        thread = first.history_writer._thread
        assert thread.is_alive()
        goes_on.set()
        await asyncio.to_thread(thread.join, SECONDS_MAX)
        assert not thread.is_alive()
    assert publishers
    assert thread not in publishers
    rows = history_in(log)
    assert kinds(rows).count("certified") == 1
    assert_applied(rows)


async def test_a_bug_of_the_writer_ends_the_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(certification_log_writer, "write_file", fail)
    runtime = member_at(tmp_path, certification_log_file_bytes=1)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await asyncio.wait_for(runtime._failure, SECONDS_MAX)
    runtime.close()
