"""Reads a member's certification log for its clients: its files, then the rows that wait for one.

A client that reads it can prove that acknowledged transactions are there once, and that no two
overlapping ones were in execution at the same time. Files are read in a thread; between two pages
nothing of the store is held.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from groupcert.certifier.history.schema import Verdict
from groupcert.members.certification_log.outbox import Outbox
from groupcert.members.door.answer_budget import PAGE_BYTES
from groupcert.v1 import group_pb2

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
    from groupcert.members.certification_log.files import rows_after

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
