"""A source, simulated: sessions that update rows at the same time, and the binary log they leave.

The rule it keeps: a row is locked from its update to its transaction's commit, and every stamp is
read where a real source reads it; so whatever a scheme lets run at once had run at once here, or
could have. Everything happens on a virtual clock, by a seed.

A session takes one transaction after the other:

1. it locks the row, first come first served, and executes; at the end of the statement it reads
   `last_committed` (WL#7165),
2. before it prepares it reads the commit parent, the number of commits so far (WL#6314),
3. prepared, it waits for a group commit: when one ends, a leader flushes all who wait, in the order
   of their sequence numbers, as one group (MDEV-4506). Then their rows are unlocked.
"""

import random
from bisect import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, count
from typing import NamedTuple

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.row_parts import database_of
from groupcert.applier.source.clock import SourceClock
from groupcert.applier.source.header import SourceHeader
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.write_set import store_key_item
from groupcert.members.wire.row_changes import decode_changes, encode_changes

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
DATABASE = "bench"
EPOCH_US = 1_600_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the source does.

    `tables`: table number r, from 1, is updated by a share of the transactions in proportion to
    1/r (Zipf's law): of 16, the first by 30 %. `keys`: rows, the same number in each table.
    `execute_us`: of a transaction, half to one and a half times that; the same of `prepare_us`.
    `commit_us`: of a group commit, however large. The defaults are a durable source's, whose
    commits are what takes time: they make groups of 16."""

    transactions: int = 50_000
    sessions: int = 32
    tables: int = 16
    keys: int = 20_000
    execute_us: int = 500
    prepare_us: int = 100
    commit_us: int = 1_000
    value_bytes: int = 100


def table_names(options: SourceOptions) -> list[str]:
    """Returns the source's tables, as `database.table`, the most updated one first."""
    return [f"{DATABASE}.t{number:02}" for number in range(1, options.tables + 1)]


def source_stream(options: SourceOptions, seed: int = 1) -> list[RelayEntry]:
    """Returns the binary log of a source, as a replica receives it.

    Cost: O(transactions log sessions).
    """
    source = _Source(options, seed)
    source.run()
    assert len(source.entries) == options.transactions, "a session never came back"
    return source.entries


def final_rows(entries: Sequence[RelayEntry]) -> dict[bytes, bytes]:
    """Returns the rows that serial execution leaves."""
    rows: dict[bytes, bytes] = {}
    for entry in entries:
        keys, values, _ = decode_changes(entry.payload)
        rows.update(zip(keys, values, strict=True))
    return rows


def longest_chain(entries: Sequence[RelayEntry]) -> int:
    """Returns the critical path: the longest chain of transactions, each of a row of the one before
    it.
    """
    lengths: dict[int, int] = {}
    longest = 0
    for entry in entries:
        items = entry.header.items
        length = 1 + max((lengths.get(item, 0) for item in items), default=0)
        lengths.update(dict.fromkeys(items, length))
        longest = max(longest, length)
    return longest


class _Prepared(NamedTuple):
    """A session's transaction before its commit."""

    session: "_Session"
    row: bytes
    table: str
    last_committed: int
    commit_parent: int


_Session = Iterator[int | None]
"""Yields how many microseconds it waits, or None: somebody resumes it."""


class _Source:
    """What all sessions share."""

    def __init__(self, options: SourceOptions, seed: int) -> None:
        self.entries: list[RelayEntry] = []
        self._options = options
        self._below = random.Random(seed).randrange
        self._now_us = 0
        self._events: list[tuple[int, int, _Session]] = []
        self._numbers = count()
        self._clock = SourceClock()
        self._begun, self._commits, self._groups = 0, 1, 0
        self._locks: dict[bytes, deque[_Session]] = {}
        self._prepared: list[_Prepared] = []
        self._is_flushing = False
        self._shares = list(accumulate(1_000_000 // (each + 1) for each in range(options.tables)))

    def run(self) -> None:
        """Runs all sessions until each has no transaction left."""
        for _ in range(self._options.sessions):
            self._resume(self._session())
        while self._events:
            self._now_us, _, session = heappop(self._events)
            self._resume(session)

    def _resume(self, session: _Session) -> None:
        self._running = session
        if (delay_us := next(session, None)) is not None:
            heappush(self._events, (self._now_us + delay_us, next(self._numbers), session))

    def _session(self) -> _Session:
        options, this = self._options, self._running
        while self._begun < options.transactions:
            self._begun += 1
            table = table_names(options)[bisect(self._shares, self._below(self._shares[-1]))]
            row = f"{table}/{self._below(options.keys // options.tables)}".encode()
            waiting = self._locks.setdefault(row, deque())
            waiting.append(this)
            if len(waiting) > 1:
                yield None
            yield self._around(options.execute_us)
            stamps = self._clock.end_statement(), self._commits
            yield self._around(options.prepare_us)
            self._prepared.append(_Prepared(this, row, table, *stamps))
            if not self._is_flushing:
                self._resume(self._group_commits())
            yield None

    def _group_commits(self) -> _Session:
        """Flushes all who wait as one group, then those who have come meanwhile."""
        self._is_flushing = True
        while self._prepared:
            group, self._prepared = self._prepared, []
            self._groups += 1
            logged = [self._log(each, self._groups if len(group) > 1 else 0) for each in group]
            yield self._options.commit_us
            for sequence_number in logged:
                self._clock.commit(sequence_number)
            self._commits += len(group)
            for session, row, *_ in group:
                waiting = self._locks[row]
                waiting.popleft()
                if waiting:
                    self._resume(waiting[0])
                else:
                    del self._locks[row]
                self._resume(session)
        self._is_flushing = False

    def _log(self, prepared: _Prepared, commit_id: int) -> int:
        """Stamps a transaction and writes it to the binary log; returns its sequence number."""
        last_committed, sequence_number = self._clock.stamp(prepared.last_committed)
        number = len(self.entries) + 1
        value = b"%0*d" % (self._options.value_bytes, number)
        header = SourceHeader(
            commit_parent=prepared.commit_parent,
            commit_id=commit_id,
            databases=(database_of(prepared.table),),
            tables=(prepared.table,),
            items=(store_key_item(prepared.row),),
            committed_us=EPOCH_US + self._now_us + self._options.commit_us,
        )
        payload, gtid = encode_changes([prepared.row], [value]), Gtid(SOURCE, number)
        stamps = last_committed, sequence_number
        self.entries.append(RelayEntry(number, number, gtid, *stamps, False, payload, header))
        return sequence_number

    def _around(self, duration_us: int) -> int:
        return duration_us // 2 + self._below(duration_us + 1)
