"""A member's history as its clients read it: whole, from files and from what waits for the next."""

from pathlib import Path
from typing import Any

import pytest

from groupcert.certifier.errors import InvalidSetting, NotServing
from groupcert.certifier.write_set import store_key_item
from groupcert.members.certification_log import files
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.services import group
from groupcert.members.services.current_runtime import CurrentRuntime
from groupcert.members.services.group import GroupService, history_page, rows_of
from groupcert.v1 import group_pb2
from tests.members.certification_log.test_writer import (
    feed,
    founding,
    member_at,
    short_pauses,
    wait_until,
)
from tests.members.certification_logs import histories_in
from tests.members.process.test_lifecycle import living
from tests.members.recovery.test_copies import write_of
from tests.members.runtime.test_runtime import runtime_at
from tests.members.services.test_admin import NO_CONTEXT

__all__ = ["short_pauses"]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "PAGE_ROWS", 2)
    monkeypatch.setattr(files, "TABLE_ROWS", 3)


async def read(runtime: MemberRuntime, after_version: int = 0) -> list[Any]:
    """Returns what is read of a member's history, by version, once each."""
    runtime.save()
    writer = runtime.history_writer
    assert writer
    pages = [
        history_page(rows, after_version)
        async for rows in rows_of(writer.outbox, writer.folder, runtime.committed_version)
    ]
    return [
        (version, transaction_id, gtid, started < committed)
        for page in pages
        for version, transaction_id, gtid, started, committed in zip(
            page.versions,
            page.transaction_ids,
            page.gtids,
            page.started_ticks,
            page.committed_ticks,
            strict=True,
        )
    ]


@pytest.mark.parametrize("file_seconds", [0, 1, 3_600])
async def test_what_is_in_files_and_what_waits_is_one_history(
    tmp_path: Path, file_seconds: int
) -> None:
    member = member_at(tmp_path, certification_log_file_seconds=file_seconds)
    await member._deliver([founding(member)])
    assert not await read(member)
    await feed(member, 2, 3, 4)
    if file_seconds == 1:
        wait_until(lambda: list((tmp_path / "log").glob("*.parquet")))
    await feed(member, 5, 6)
    found = await read(member)
    assert [each[:2] for each in found] == [
        (version, b"key/%d" % (version + 1)) for version in range(1, 6)
    ]
    assert [each[2].rpartition(":")[2] for each in found] == list("12345")
    assert all(each[3] for each in found)
    assert await read(member, after_version=3) == found[3:]
    member.close()
    assert bool(list((tmp_path / "log").glob("*.parquet"))) == (file_seconds > 0)
    again = member_at(tmp_path, certification_log_file_seconds=3_600)
    assert await read(again) == found
    again.close()


async def test_what_becomes_a_file_while_it_is_read_is_there_once(tmp_path: Path) -> None:
    member = member_at(tmp_path, certification_log_file_seconds=1)
    await member._deliver([founding(member)])
    await feed(member, 2, 3, 4)
    member.save()
    writer = member.history_writer
    assert writer
    pages = rows_of(writer.outbox, writer.folder, member.committed_version)
    rows = await anext(pages)
    wait_until(lambda: not writer.outbox.waiting_rows)
    rows += [row async for page in pages for row in page]
    member.close()
    (written,) = histories_in(tmp_path / "log").values()
    assert [row["place"] for row in rows] == [row["place"] for row in written]
    items = list(history_page(rows, 0).write_set_items)
    assert items == [store_key_item(b"shared")] * 3


async def test_a_member_without_a_log_says_which_setting_it_lacks(tmp_path: Path) -> None:
    current = CurrentRuntime()
    current.runtime = runtime_at(tmp_path)
    request = group_pb2.ReadHistoryRequest()
    pages = GroupService(current).ReadHistory(request, NO_CONTEXT)
    with pytest.raises(InvalidSetting, match="certification_log"):
        await anext(pages)
    current.runtime.close()


async def commit(runtime: MemberRuntime) -> None:
    """Commits a transaction whose decision has a key of its own."""
    await runtime.submit((write_of(b"value", runtime.committed_version),))
    runtime.save()


async def test_who_reads_slowly_keeps_no_member_from_coming_back(tmp_path: Path) -> None:
    async with living(tmp_path, certification_log=tmp_path / "log") as process:
        await process.online()
        await commit(process.runtime)
        await commit(process.runtime)
        await commit(process.runtime)
        current = CurrentRuntime()
        current.runtime = process.runtime
        request = group_pb2.ReadHistoryRequest()
        parts = GroupService(current).ReadHistory(request, NO_CONTEXT)
        assert (await anext(parts)).versions[0] == 1
        process.runtime.member.expel("m1")
        process.runtime._sender.schedule()
        await process.online(runs=2)
        with pytest.raises(NotServing):
            await anext(parts)
