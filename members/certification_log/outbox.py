"""Rows of a member's history that no file of its certification log has yet, in the member's store.

The rule it keeps: decisions are stored with the batch that stores the state, and removed with the
batch that stores how far the files are written. So a crash loses none, and none is in two files:
what was written and is still here is written again, under the same name. The number of waiting rows
and bytes is stored along with both, and never counted.
"""

import json
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from ...applier.targets.rocksdb import AppliedInterval, intervals_of
from ...certifier.history.schema import CHAIN_START, Cursor, Verdict
from ...certifier.storage.store import Batch, Family, Store, integer_key
from ..core.noted_decisions import Noted, decode, place_key, rows_in

CURSOR_KEY = b"certification log"
"""Key in META: which history this is, and how far it is written. A copy of a state does not contain
it."""
ADDED_KEY = b"certification log: added"
"""Key in META: all rows and bytes that came in since the history began."""
FILLING_SHARE = 0.25
"""Part of the bytes that may wait: a writer that keeps pace stays below it."""
PAGE_BYTES = 1 << 20
_END = b"\xff"
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class _Saved(NamedTuple):
    """The stored cursor of an outbox; `tick`: what ran before it is written."""

    history: str
    cursor: Cursor
    tick: int
    written_bytes: int
    added_rows: int
    added_bytes: int


class Outbox:
    """The waiting decisions of one member. `begin` and `added` are for the event loop, `take` and
    `written` for the thread that writes files.
    """

    def __init__(
        self,
        store: Store,
        observer: str,
        *,
        bytes_max: int,
        allows_keys: bool = True,
    ) -> None:
        """
        Args:
            bytes_max: may wait; with more, all that waits is given up, and another history begins.
            allows_keys: readable keys go along; else those that wait already are left out.
        """
        self.store = store
        self.observer = observer
        self.bytes_max = bytes_max
        self.allows_keys = allows_keys
        self.is_superseded = False
        """Whether the files have rows that this store does not know: another history has to
        begin."""
        self.history, self.cursor, self.tick = "", Cursor(), 0
        self.waits_since = time.monotonic()
        self._added_rows = self._added_bytes = self._written_bytes = 0
        self._lock = threading.Lock()
        if saved := _saved(store):
            self.history, self.cursor, self.tick, self._written_bytes = saved[:4]
            self._added_rows, self._added_bytes = saved[4:]

    @property
    def has_begun(self) -> bool:
        """True if there is a history to continue."""
        return bool(self.history)

    @property
    def waiting_rows(self) -> int:
        """Rows that no file has."""
        return self._added_rows - self.cursor.number

    @property
    def waiting_bytes(self) -> int:
        """Bytes of these rows in the store."""
        return self._added_bytes - self._written_bytes

    @property
    def is_full(self) -> bool:
        """True if so much waits that it has to be given up."""
        return self.waiting_bytes > self.bytes_max

    def is_filling(self, bytes_: int) -> bool:
        """Returns whether `bytes_` waiting bytes are more than a writer should let wait."""
        return bytes_ > self.bytes_max * FILLING_SHARE

    def begin(self, batch: Batch, place: int) -> None:
        """Begins another history, whose first row is at `place`; gives up the rows that wait."""
        with self._lock:
            last = self.store.last(Family.HISTORY, _END)
            self.tick = int.from_bytes(last[0], "big") if last else 0
            batch.delete_range(Family.DECISIONS, b"", _END)
            batch.delete_range(Family.HISTORY, b"", integer_key(self.tick))
            self.history, self.cursor = secrets.token_hex(8), Cursor(0, place - 1, CHAIN_START)
            self._added_rows = self._added_bytes = self._written_bytes = 0
            self.is_superseded = False
            self._put_cursor(batch)

    def put(self, batch: Batch, noted: Noted, block: bytes) -> None:
        """Adds decisions that follow all others to a batch; call `added` once it is written."""
        put(batch, noted, block)
        added = [self._added_rows + len(noted), self._added_bytes + len(block)]
        batch.put(Family.META, ADDED_KEY, json.dumps(added).encode())

    def added(self, rows: int, block: bytes) -> None:
        """Counts decisions that were stored."""
        with self._lock:
            if not self.waiting_rows:
                self.waits_since = time.monotonic()
            self._added_rows += rows
            self._added_bytes += len(block)

    def take(self, committed_version: int) -> "Taken":
        """Returns the rows for the next file, as far as they are committed and stored now."""
        with self._lock:
            return Taken(self, committed_version, self.waiting_rows)

    def written(self, taken: "Taken", cursor: Cursor) -> bool:
        """Stores how far the files are written, and removes the rows they have; returns False if
        the history was given up meanwhile.
        """
        with self._lock:
            if taken.history != self.history:
                return False
            batch = self.store.batch()
            batch.delete_range(Family.DECISIONS, b"", taken.end_key)
            batch.delete_range(Family.HISTORY, b"", integer_key(taken.tick))
            self._written_bytes += taken.bytes
            self.waits_since = time.monotonic()
            self.cursor, self.tick = cursor, taken.tick
            self._put_cursor(batch)
            self.store.write(batch)
            return True

    def _put_cursor(self, batch: Batch) -> None:
        number, place, chain = self.cursor
        written = [self.history, number, place, chain.hex(), self.tick, self._written_bytes]
        batch.put(Family.META, CURSOR_KEY, json.dumps(written).encode())


class KeptHistory:
    """The history of a member that writes no files: all of it waits in the store, for those who
    read it from the member. `CertificationLogWriter` is the same with files.
    """

    def __init__(self, outbox: Outbox, folder: Path) -> None:
        self.outbox = outbox
        self.folder = folder
        self.written_rows = 0
        self.last_file = ""
        self.error = ""

    def start(self) -> None:
        """Begins to write, from where an earlier process was."""

    def hurry(self) -> None:
        """Writes what waits and is committed, however new."""

    @property
    def hurries(self) -> bool:
        """True until that is written."""
        return False

    def stop(self, timeout_seconds: float) -> None:
        """Writes all that is committed, and ends."""

    def leave(self, timeout_seconds: float) -> None:
        """Ends; rows that wait get no file."""


class Taken:
    """Rows for one file, with what the applier knows of their transactions.

    `waiting_bytes`: what waited when they were taken, committed or not; `end_key`: what was read of
    the outbox ends before it; `bytes`: of that, with the rows' share of a block that was not read
    to its end; `tick`: when the last of these transactions was committed.
    """

    def __init__(self, outbox: Outbox, committed_version: int, rows_max: int) -> None:
        self.history, self.cursor = outbox.history, outbox.cursor
        self.end_key = b""
        self.bytes = 0
        self.tick = outbox.tick
        self.waiting_bytes = outbox.waiting_bytes
        self._outbox = outbox
        self._committed_version = committed_version
        self._rows_max = rows_max

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the rows, in order; holds nothing of the store between two of them."""
        outbox = self._outbox
        pages = _pages(outbox.store, Family.HISTORY, integer_key(outbox.tick))
        intervals = (each for page in pages for each in intervals_of(*page))
        interval = next(intervals, None)
        left = self._rows_max
        for key, block in self.blocks():
            if outbox.history != self.history:  # The block may be of another history.
                return
            rows, total = self.rows_of(block), rows_in(block)
            for number, row in enumerate(rows, total - len(rows) + 1):
                version = row["version"]
                if not left or version > self._committed_version:
                    return
                left -= 1
                if row.get("verdict") == _CERTIFIED:
                    while interval and interval.version < version:
                        interval = next(intervals, None)
                    if interval and interval.version == version:
                        _add_interval(row, interval)
                        self.tick = interval.committed
                self.end_key = key + b"\x00" if number == total else key
                size = len(block)
                self.bytes += size * number // total - size * (number - 1) // total
                yield row

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the stored blocks from the first waiting row on, which may begin before it."""
        store = self._outbox.store
        found = store.last(Family.DECISIONS, integer_key(self.cursor.place))
        return _pages(store, Family.DECISIONS, found[0] if found else b"")

    def rows_of(self, block: bytes) -> list[dict[str, Any]]:
        """Returns the rows of a block that wait."""
        place, outbox = self.cursor.place, self._outbox
        rows = decode(block, outbox.observer, self.history, str(outbox.store.path))
        if not outbox.allows_keys:
            for row in rows:
                row.pop("write_keys", None)
        return [row for row in rows if row["place"] > place]


def forget(store: Store) -> int:
    """Removes the history, as this process keeps none; the next one begins anew.

    Returns:
        The number of rows given up, which no file has.
    """
    saved = _saved(store)
    held = [family for family in (Family.DECISIONS, Family.HISTORY) if store.last(family, _END)]
    if saved or held:
        batch = store.batch()
        batch.delete(Family.META, CURSOR_KEY)
        batch.delete(Family.META, ADDED_KEY)
        for family in held:
            batch.delete_range(family, b"", _END)
        store.write(batch)
    return _waiting_rows(saved)


def waiting_rows_of(store: Store) -> int:
    """Returns the number of rows that no file has, in a store that nobody writes to."""
    return _waiting_rows(_saved(store))


def tell_given_up(member: str, rows: int, why: str) -> None:
    """Logs that decided rows are given up, which no file of the certification log has."""
    log.error("certification_log_given_up", member=member, rows=rows, text=why)


def put(batch: Batch, noted: Noted, block: bytes) -> None:
    """Adds decisions that follow all others to a batch."""
    batch.put(Family.DECISIONS, integer_key(place_key(noted)), block)


def _saved(store: Store) -> _Saved | None:
    written, added = store.get(Family.META, CURSOR_KEY), store.get(Family.META, ADDED_KEY)
    if written is None or added is None:
        return None
    history, number, place, chain, tick, written_bytes = json.loads(written)
    cursor = Cursor(number, place, bytes.fromhex(chain))
    return _Saved(history, cursor, tick, written_bytes, *json.loads(added))


def _waiting_rows(saved: _Saved | None) -> int:
    return saved.added_rows - saved.cursor.number if saved else 0


def _add_interval(row: dict[str, Any], interval: AppliedInterval) -> None:
    """Adds when a transaction ran, and beside which others. After a crash a decision may be
    repeated: the transaction ran before.
    """
    _, started, committed, started_us, committed_us, worker = interval[:6]
    executed_us, parent, commit_id = interval[6:]
    row["started_tick"], row["committed_tick"] = started, committed
    if worker >= 0:
        row["worker"] = worker
    if parent >= 0:
        row["commit_parent"], row["commit_id"] = parent, commit_id
    began_us = started_us or committed_us
    if began_us:
        row["decided_us"] = min(row["decided_us"], began_us)
        row["started_us"] = started_us or row["decided_us"]
        row["committed_us"] = committed_us
    if executed_us:
        row["executed_us"] = executed_us


def _pages(store: Store, family: Family, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values from `start` on, read in pages: a scan that is not at its end holds
    the store open.
    """
    page: list[tuple[bytes, bytes]] | None = None
    while page is None or page:
        page, size = [], 0
        for key, value in store.scan(family, start):
            page.append((key, value))
            size += len(value)
            if size > PAGE_BYTES:
                break
        yield from page
        start = page[-1][0] + b"\x00" if page else start


_CERTIFIED = Verdict.CERTIFIED.value
