"""What waits for the certification log: how much that is, and what ends it before it is in a file.

The method is that of `test_certification_log_writer.py`.
"""

import asyncio
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.certifier.storage.store import Family
from groupcert.members.certification_log import files
from groupcert.members.certification_log import writer as certification_log_writer
from groupcert.members.certification_log.outbox import CURSOR_KEY
from groupcert.members.certification_log.writer import CertificationLogWriter
from groupcert.members.process import lifecycle as runs
from groupcert.members.recovery import store_swap
from groupcert.members.runtime.runtime import MemberRuntime, RunStart
from tests.members.certification_log.test_writer import (
    decided,
    feed,
    founding,
    history_in,
    joiner_folder,
    kinds,
    member_at,
    message,
    outbox_of,
    short_pauses,
    wait_until,
    write,
)
from tests.members.certification_logs import assert_applied, histories_in
from tests.members.process.test_lifecycle import FULL, living
from tests.members.rows import rows_of
from tests.members.runtime.test_runtime import runtime_at
from tests.waiting import SECONDS_MAX, until

__all__ = ["short_pauses"]
GIVEN_UP = "certification_log_given_up"


async def begun(tmp_path: Path, **settings: object) -> MemberRuntime:
    """A member that has decided two transactions; its files end by time, an hour."""
    runtime = await decided(tmp_path, 2, certification_log_file_seconds=3_600, **settings)
    runtime.save()
    return runtime


def closed_without_files(runtime: MemberRuntime, folder: Path) -> None:
    """Closes a member while its log's folder cannot be written."""
    folder.write_bytes(b"a file in its place")
    runtime.close()
    folder.unlink()


async def test_what_waits_is_known_at_the_next_start_and_comes_to_nothing(tmp_path: Path) -> None:
    """Also where a file ended in the midst of what was stored at once."""
    runtime = await begun(tmp_path)
    await runtime._deliver([message(3, write("a", 1), write("b", 1), write("c", 1))])
    assert rows_of(runtime).applier.drain(10)
    runtime.save()
    outbox = outbox_of(runtime)
    taken = outbox.take(2)
    list(taken.rows())
    assert 0 < taken.bytes < outbox.waiting_bytes
    waited = (outbox.waiting_rows, outbox.waiting_bytes)
    assert waited[0] == 8
    stored = sum(len(block) for _, block in runtime.store.scan(Family.DECISIONS))
    assert waited[1] == stored
    closed_without_files(runtime, tmp_path / "log")
    again = member_at(tmp_path, certification_log_file_seconds=3_600)
    outbox = outbox_of(again)
    assert (outbox.waiting_rows, outbox.waiting_bytes) == waited
    again.close()
    assert (outbox.waiting_rows, outbox.waiting_bytes) == (0, 0)
    rows = history_in(tmp_path / "log")
    assert_applied(rows)


async def test_a_history_that_is_given_up_takes_its_ticks_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where nothing may wait, a look of the writer's would have it write the history's file.
    monkeypatch.setattr(certification_log_writer, "POLL_SECONDS", 3_600.0)
    runtime = await begun(tmp_path)
    await feed(runtime, 3, 4)
    outbox_of(runtime).bytes_max = 0
    runtime.save()
    assert len(list(runtime.store.scan(Family.HISTORY))) == 1, "only the last one may still count"
    outbox_of(runtime).bytes_max = 1 << 30
    await feed(runtime, 5)
    runtime.close()
    rows = history_in(tmp_path / "log")
    assert kinds(rows) == ["start", "certified", "conflict"]
    assert_applied(rows)


async def test_a_joiner_without_a_log_keeps_nothing_that_its_donor_had_to_write(
    tmp_path: Path,
) -> None:
    donor = await begun(tmp_path, certification_log_keys=True)
    folder = await joiner_folder(donor, tmp_path / "joiner")
    assert store_swap.finish(folder)
    with capture_logs() as events:
        joiner = runtime_at(folder)
    assert GIVEN_UP not in {each["event"] for each in events}, "they are in the donor's files"
    for family in (Family.DECISIONS, Family.HISTORY):
        assert not list(joiner.store.scan(family))
    joiner.close()


async def test_it_is_told_how_much_goes_where_the_log_is_switched_off(tmp_path: Path) -> None:
    closed_without_files(await begun(tmp_path), tmp_path / "log")
    with capture_logs() as events:
        runtime_at(tmp_path / "data").close()
    assert [each["rows"] for each in events if each["event"] == GIVEN_UP] == [5]
    with capture_logs() as events:
        runtime_at(tmp_path / "data").close()
    assert not [each for each in events if each["event"] == GIVEN_UP]


async def test_it_is_told_how_much_goes_with_a_state_that_is_discarded(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.write_bytes(b"a file in its place")
    with capture_logs() as events:
        async with living(tmp_path / "data", certification_log=folder) as process:
            await process.online()
            await process.runtime.submit((write("one", process.runtime.committed_version),))
            first = process.runtime
            first.member.expel("m1")
            first._sender.schedule()
            await process.online(runs=2)
            assert GIVEN_UP not in {each["event"] for each in events}, "its state stays"
            process.runtime.begin_again(RunStart(discards_state=True))
            await process.online(runs=3)
            folder.unlink()
    (told,) = [each for each in events if each["event"] == GIVEN_UP]
    assert told["rows"] >= 5
    rows = history_in(folder)
    assert rows[0]["version"] == 0


async def test_it_is_told_how_much_goes_with_a_state_that_is_discarded_after_its_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "DISK_RETRY_SECONDS", 10)
    folder = tmp_path / "log"
    folder.write_bytes(b"a file in its place")
    with capture_logs() as events:
        async with living(tmp_path / "data", certification_log=folder) as process:
            await process.online()
            first = process.runtime
            first.give_up(FULL)
            await until(lambda: first.closed)
            first.begin_again(RunStart(discards_state=True))
            await process.online(runs=2)
            folder.unlink()
    (told,) = [each for each in events if each["event"] == GIVEN_UP]
    assert told["rows"] >= 3


async def test_it_is_told_how_much_goes_where_a_kill_came_before_the_copy_took_its_place(
    tmp_path: Path,
) -> None:
    runtime = await begun(tmp_path)
    closed_without_files(runtime, tmp_path / "log")
    donor = runtime_at(tmp_path / "donor")
    await donor._deliver([founding(donor)])
    await joiner_folder(donor, tmp_path / "data")
    with capture_logs() as events:
        runs.put_copy_in_place(runtime.config)
        runs.put_copy_in_place(runtime.config)
    assert [each["rows"] for each in events if each["event"] == GIVEN_UP] == [5]
    assert not store_swap.is_adopted(tmp_path / "data")


async def test_keys_that_wait_stay_there_once_they_are_not_allowed(tmp_path: Path) -> None:
    runtime = await begun(tmp_path, certification_log_keys=True)
    await runtime._deliver([message(3, write("readable", 1))])
    assert rows_of(runtime).applier.drain(10)
    closed_without_files(runtime, tmp_path / "log")
    again = member_at(tmp_path, certification_log_file_seconds=3_600)
    assert b"readable" in b"".join(block for _, block in again.store.scan(Family.DECISIONS))
    again.close()
    rows = history_in(tmp_path / "log")
    assert kinds(rows)[3:] == ["certified", "conflict", "certified"]
    assert not any("write_keys" in row for row in rows)


async def test_what_is_decided_and_not_committed_fills_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await decided(
        tmp_path, 2, certification_log_file_bytes=4_000, certification_log_file_seconds=3_600
    )
    held: list[RelayEntry] = []
    apply = runtime.rows.append
    monkeypatch.setattr(runtime.rows, "append", held.extend)
    version = runtime.committed_version
    await runtime._deliver([message(3, *(write(f"key/{each}", version) for each in range(400)))])
    runtime.save()
    outbox = outbox_of(runtime)
    wait_until(lambda: outbox.cursor.number == 5)
    await asyncio.sleep(0.1)
    assert len(list((tmp_path / "log").iterdir())) == 1
    apply(held)
    assert rows_of(runtime).applier.drain(10)
    runtime.close()
    rows = history_in(tmp_path / "log")
    assert len(rows) == 405
    assert_applied(rows)


@pytest.mark.parametrize("files", [1, 2])
async def test_a_store_that_was_put_back_begins_another_history(tmp_path: Path, files: int) -> None:
    """Its files, which tell more than it knows, stay as they are."""
    (await begun(tmp_path)).close()
    shutil.copytree(tmp_path / "data", tmp_path / "earlier")
    for number in range(3, 3 + files):
        runtime = member_at(tmp_path)
        await feed(runtime, number)
        runtime.close()
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "earlier").rename(tmp_path / "data")
    with capture_logs() as events:
        again = member_at(tmp_path, certification_log_file_bytes=1)
        outbox = outbox_of(again)
        wait_until(lambda: outbox.is_superseded)
        await feed(again, 3)
        again.save()
        await feed(again, 4)
        again.close()
    assert [each["event"] for each in events].count(GIVEN_UP) == 1
    before, after = histories_in(tmp_path / "log").values()
    assert len(before) == 5 + 2 * files
    assert kinds(after) == ["start", "certified", "conflict"]
    assert [row["version"] for row in after] == [2, 3, 3]


def fill(path: Path) -> None:
    """Writes a file until there is no space."""
    with path.open("wb", buffering=0) as filler, pytest.raises(OSError, match="space"):
        while True:
            filler.write(bytes(4_096))


def files_in(folder: Path) -> list[str]:
    """Returns the names of the log's files."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB in memory, for the log."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "log"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if (done := subprocess.run(mount, capture_output=True, text=True)).returncode:
        pytest.skip(f"no small file system here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # Whoever still writes there.


async def test_a_full_disk_stops_nobody_and_the_log_is_whole_later(
    tmp_path: Path, small_disk: Path
) -> None:
    runtime = await decided(tmp_path, 2, certification_log_file_bytes=1)
    runtime.save()
    writer = runtime.history_writer
    assert writer
    wait_until(lambda: writer.outbox.cursor.number == 5)
    before = files_in(small_disk)
    fill(small_disk / "filler")
    for number in range(3, 8):
        await feed(runtime, number)
        runtime.save()
    wait_until(lambda: "space" in writer.error)
    assert runtime.committed_version == 6
    assert writer.outbox.waiting_rows == 10
    assert files_in(small_disk) == before
    os.unlink(small_disk / "filler")
    wait_until(lambda: not (writer.outbox.waiting_rows or writer.error))
    runtime.close()
    rows = history_in(small_disk)
    assert kinds(rows[3:]) == ["certified", "conflict"] * 6
    assert_applied(rows)
    assert json.loads(runtime_cursor(tmp_path))[1] == len(rows)


def runtime_cursor(tmp_path: Path) -> bytes:
    """How far the store says that the files are written."""
    again = member_at(tmp_path)
    saved = again.store.get(Family.META, CURSOR_KEY)
    again.close()
    assert saved
    return saved


class Rests:
    """Counts the rests of this thread in the place of the event that ends a writer."""

    def __init__(self, event: threading.Event) -> None:
        self.count = 0
        self._event = event
        self._thread = threading.current_thread()
        self.set, self.is_set = event.set, event.is_set

    def wait(self, seconds: float) -> bool:
        if threading.current_thread() is not self._thread:
            return self._event.wait(seconds)
        self.count += 1
        return False


async def test_the_writer_rests_until_too_much_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certification_log_writer, "STEP_ROWS", 1)
    runtime = await begun(tmp_path)
    writer = runtime.history_writer
    assert isinstance(writer, CertificationLogWriter)
    rests = Rests(writer._stopping)
    monkeypatch.setattr(writer, "_stopping", rests)
    rows = list(writer.outbox.take(runtime.committed_version).rows())
    assert len(list(writer._at_leisure(iter(rows)))) == rests.count == 5
    monkeypatch.setattr(writer.outbox, "bytes_max", 3 * writer.outbox.waiting_bytes)
    assert len(list(writer._at_leisure(iter(rows)))) == rests.count == 5
    runtime.close()


async def test_nothing_is_given_up_that_the_folder_would_have_taken(tmp_path: Path) -> None:
    """A file ends when much of what may wait does, though it is neither old nor full."""
    with capture_logs() as events:
        runtime = await begun(tmp_path, certification_log_waiting_bytes_max=6_000)
        outbox = outbox_of(runtime)
        for number in range(3, 40):
            await feed(runtime, number)
            runtime.save()
            wait_until(lambda: outbox.waiting_bytes < 3_000)
        assert outbox.cursor.number
        runtime.close()
    assert GIVEN_UP not in {each["event"] for each in events}
    rows = history_in(tmp_path / "log")
    assert len(rows) == 3 + 2 * 38


async def test_rows_that_come_while_a_file_is_written_fill_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files' worth comes while the first file is written; the second needs no further row."""
    write_file = files.write_file
    is_written, has_come = threading.Event(), threading.Event()

    def write_slowly(*given: Any) -> Any:
        file = write_file(*given)
        is_written.set()
        assert has_come.wait(SECONDS_MAX)
        return file

    monkeypatch.setattr(certification_log_writer, "write_file", write_slowly)
    runtime = await begun(tmp_path, certification_log_waiting_bytes_max=6_000)
    outbox, number = outbox_of(runtime), 3
    for bytes_min, event in ((1_501, is_written), (4_502, has_come)):
        while outbox.waiting_bytes < bytes_min:
            await feed(runtime, number)
            runtime.save()
            number += 1
        event.wait(SECONDS_MAX) if event is is_written else event.set()
    wait_until(lambda: outbox.waiting_bytes < 1_500)
    runtime.close()
