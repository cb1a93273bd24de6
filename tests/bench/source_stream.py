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
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate

from groupcert.applier.queue.parts import database_of
from groupcert.applier.queue.relay_group import RelayEntry
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
    source = _Source(options, random.Random(seed).randrange)
    for session in range(options.sessions):
        source.begin(session)
    while source.events:
        source.now_us, _, step, session = heappop(source.events)
        step(session)
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


@dataclass(slots=True)
class _Open:
    """A session's transaction before its commit."""

    row: bytes
    table: str
    last_committed: int = 0
    commit_parent: int = 0
    sequence_number: int = 0


@dataclass(slots=True)
class _Source:
    """What all sessions share."""

    options: SourceOptions
    below: Callable[[int], int]
    """Draws a number from 0 to the given one, which it never is."""
    now_us: int = 0
    entries: list[RelayEntry] = field(default_factory=list)
    events: list[tuple[int, int, Callable[[int], None], int]] = field(default_factory=list)
    _clock: SourceClock = field(default_factory=SourceClock)
    _begun: int = 0
    _scheduled: int = 0
    _commits: int = 1
    _groups: int = 0
    _open: dict[int, _Open] = field(default_factory=dict)
    _locks: dict[bytes, deque[int]] = field(default_factory=dict)
    _prepared: list[int] = field(default_factory=list)
    _flushed: list[int] = field(default_factory=list)
    _table_names: list[str] = field(default_factory=list)
    _shares: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._table_names = table_names(self.options)
        numbers = range(1, self.options.tables + 1)
        self._shares = list(accumulate(1_000_000 // number for number in numbers))

    def begin(self, session: int) -> None:
        """Begins the session's next transaction, if one is left, as soon as its row is free."""
        if self._begun == self.options.transactions:
            return
        self._begun += 1
        share = self.below(self._shares[-1])
        number = next(number for number, end in enumerate(self._shares) if share < end)
        table = self._table_names[number]
        key = self.below(self.options.keys // self.options.tables)
        row = f"{table}/{key}".encode()
        self._open[session] = _Open(row, table)
        waiting = self._locks.setdefault(row, deque())
        waiting.append(session)
        if len(waiting) == 1:
            self._execute(session)

    def _execute(self, session: int) -> None:
        """Gives the session its row."""
        self._after(self._around(self.options.execute_us), self._end_statement, session)

    def _end_statement(self, session: int) -> None:
        opened = self._open[session]
        opened.last_committed = self._clock.end_statement()
        opened.commit_parent = self._commits
        self._after(self._around(self.options.prepare_us), self._enter_group_commit, session)

    def _enter_group_commit(self, session: int) -> None:
        self._prepared.append(session)
        if not self._flushed:
            self._flush(session)

    def _flush(self, leader: int) -> None:
        """Flushes all who wait as one group, through the leader."""
        self._flushed, self._prepared = self._prepared, []
        self._groups += 1
        commit_id = self._groups if len(self._flushed) > 1 else 0
        for session in self._flushed:
            self._log(self._open[session], commit_id)
        self._after(self.options.commit_us, self._commit, leader)

    def _log(self, opened: _Open, commit_id: int) -> None:
        """Stamps a transaction and writes it to the binary log."""
        last_committed, opened.sequence_number = self._clock.stamp(opened.last_committed)
        number = len(self.entries) + 1
        value = b"%0*d" % (self.options.value_bytes, number)
        header = SourceHeader(
            commit_parent=opened.commit_parent,
            commit_id=commit_id,
            databases=(database_of(opened.table),),
            tables=(opened.table,),
            items=(store_key_item(opened.row),),
            committed_us=EPOCH_US + self.now_us + self.options.commit_us,
        )
        self.entries.append(
            RelayEntry(
                position=number,
                version=number,
                gtid=Gtid(SOURCE, number),
                last_committed=last_committed,
                sequence_number=opened.sequence_number,
                local=False,
                payload=encode_changes([opened.row], [value]),
                header=header,
            )
        )

    def _commit(self, _leader: int) -> None:
        """Commits the durable group: its rows are unlocked, and the next group is flushed."""
        committed, self._flushed = self._flushed, []
        for session in committed:
            self._clock.commit(self._open[session].sequence_number)
        self._commits += len(committed)
        for session in committed:
            row = self._open.pop(session).row
            waiting = self._locks[row]
            waiting.popleft()
            if waiting:
                self._execute(waiting[0])
            else:
                del self._locks[row]
            self.begin(session)
        if self._prepared:
            self._flush(self._prepared[0])

    def _around(self, duration_us: int) -> int:
        return duration_us // 2 + self.below(duration_us + 1)

    def _after(self, delay_us: int, step: Callable[[int], None], session: int) -> None:
        self._scheduled += 1
        heappush(self.events, (self.now_us + delay_us, self._scheduled, step, session))
