"""The gRPC service that answers with the group as this member sees it.

A client that reads a member's history can prove that acknowledged transactions are there once, and
that no two overlapping ones were in execution at the same time. Files are read in a thread, then
come the rows that wait for one; between two pages nothing of the store is held.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from groupcert.v1 import group_pb2, group_pb2_grpc

from ...certifier.errors import InvalidSetting, NotServing
from ...certifier.history.schema import Verdict
from ..certification_log.outbox import Outbox
from ..core.caller_shares import Shares
from ..door.answer_budget import PAGE_BYTES, answering
from ..door.call_places import Places
from ..door.callers import CALLER
from .current_runtime import CurrentRuntime
from .group_status import group_status
from .serving import Context

WATCH_PERIOD_MS_MIN = 50
PAGE_ROWS = 1_000
ROW_BYTES = 128
ITEM_BYTES = 10
"""Bytes of a row in an answer, and of each of its items, at most."""
READERS_MAX = 4
"""Readers at a time, of all callers: each has some 20 MB of a file in memory."""


async def rows_of(
    outbox: Outbox, folder: Path, committed_version: int
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yields the rows of the history that a member writes now, in order, in pages.

    Rows that become a file meanwhile are read from the file. A history that is given up ends early.
    """
    history, place = outbox.history, -1
    while outbox.history == history:
        cursor = outbox.cursor
        files = _rows_in_files(outbox, folder, place) if cursor.number else iter(())
        while page := await asyncio.to_thread(next, files, None):
            yield page
            place = page[-1]["place"]
        waiting: Iterator[dict[str, Any]] = outbox.take(committed_version).rows()
        rows = (row for row in waiting if row["place"] > place)
        while (page := list(islice(rows, PAGE_ROWS))) and outbox.cursor == cursor:
            yield page
            place = page[-1]["place"]
            await asyncio.sleep(0)
        if outbox.cursor == cursor:
            return


def _rows_in_files(outbox: Outbox, folder: Path, place: int) -> Iterator[list[dict[str, Any]]]:
    # Parquet is not installed where no member writes files.
    from ..certification_log.files import rows_after

    return rows_after(folder, outbox.observer, outbox.history, place)


def history_pages(
    rows: Iterable[dict[str, Any]], after_version: int
) -> Iterator[group_pb2.ReadHistoryResponse]:
    """Yields pages of the certified transactions after a version, taken from `rows`."""
    part: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        more = ROW_BYTES + ITEM_BYTES * len(row.get("write_set") or ())
        if part and size + more > PAGE_BYTES:
            yield history_page(part, after_version)
            part, size = [], 0
        part.append(row)
        size += more
    if (page := history_page(part, after_version)).versions:
        yield page


def history_page(
    rows: Iterable[dict[str, Any]], after_version: int
) -> group_pb2.ReadHistoryResponse:
    """Returns the certified transactions after a version, taken from `rows`, as columns."""
    page = group_pb2.ReadHistoryResponse()
    for row in rows:
        if row.get("verdict") != Verdict.CERTIFIED or row["version"] <= after_version:
            continue
        page.versions.append(row["version"])
        page.transaction_ids.append(bytes.fromhex(row["transaction_id"]))
        page.gtids.append(f"{row['gtid_source']}:{row['gtid_number']}")
        page.last_committed.append(row.get("last_committed") or 0)
        page.sequence_numbers.append(row.get("sequence_number") or 0)
        page.started_ticks.append(row.get("started_tick") or 0)
        page.committed_ticks.append(row.get("committed_tick") or 0)
        page.write_set_sizes.append(len(row["write_set"]))
        page.write_set_items.extend(item % (1 << 64) for item in row["write_set"])
    return page


class GroupService(group_pb2_grpc.GroupServiceServicer):
    """Answers with the group as this member sees it."""

    def __init__(self, current: CurrentRuntime) -> None:
        self._current = current
        self._status_bytes = 0
        self._readers = Places(Shares(READERS_MAX))

    async def GetStatus(
        self, request: group_pb2.GetStatusRequest, context: Context
    ) -> group_pb2.GetStatusResponse:
        """Returns the status now."""
        return group_pb2.GetStatusResponse(status=await self._status())

    async def WatchStatus(
        self, request: group_pb2.WatchStatusRequest, context: Context
    ) -> AsyncIterator[group_pb2.WatchStatusResponse]:
        """Yields the status again and again."""
        period_ms = max(request.period_ms, WATCH_PERIOD_MS_MIN)
        stopping = self._current.stopping
        while True:
            yield group_pb2.WatchStatusResponse(status=await self._status())
            answering().settle(0)
            await stopping.unless(asyncio.sleep(period_ms / 1000), self._current.name)

    async def ReadHistory(
        self, request: group_pb2.ReadHistoryRequest, context: Context
    ) -> AsyncIterator[group_pb2.ReadHistoryResponse]:
        """Yields the rows of the certification log after a version."""
        async with self._readers.held(CALLER.get()):
            with self._current.fencing():
                runtime = self._current.get()
                writer = runtime.history_writer
                if writer is None:
                    expected = "a folder, for its history to be read"
                    raise InvalidSetting(name="certification_log", value=None, expected=expected)
                runtime.save()
                async for rows in rows_of(writer.outbox, writer.folder, runtime.committed_version):
                    for page in history_pages(rows, request.after_version):
                        yield page
                    if runtime.closed:
                        state = runtime.state.name
                        raise NotServing(member=runtime.config.member, state=state)

    async def _status(self) -> group_pb2.GroupStatus:
        """Returns the status now, once there is room for one of the last one's size."""
        await answering().room(self._status_bytes)
        status = group_status(self._current.observed())
        self._status_bytes = status.ByteSize()
        return status
