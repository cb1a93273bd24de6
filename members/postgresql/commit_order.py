"""The order of commits at a server: local transactions take their turn among those of others.

Every certified transaction of the group has a version; they become visible at the server one after
the other, by their versions, so that a snapshot of the server is a prefix of the total order and
its largest version says which one. A local transaction is a backend that waits in its COMMIT; one
of others comes from the member's binary log and is executed by the companion.

`CommitOrder` is a state machine; whoever drives it (`companion.py`) does this:

    1. calls `submitted` before it certifies a local transaction, and `decided` or `withdrawn` with
       the outcome;
    2. calls `received` with the entries of the binary log, in order;
    3. calls `next_step` after each of these until it returns None, and does what it returns: lets
       a backend commit, or executes entries;
    4. asks the server now and then how the transactions in `granted` ended, and calls `committed`
       for each that did; one that did not (its backend died) it executes itself, then calls
       `executed_for`.

Whoever has its turn behind a granted transaction waits for the end of that in the server, without a
round trip: in the lock of its transaction id.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from ...certifier.gtid import Gtid

BATCH_TRANSACTIONS_MAX = 64
"""Transactions of others that are executed in one transaction of the server."""


class Entry(NamedTuple):
    """A certified transaction; `parts` are its rows (see `rows_in`), `write_set` the items of one
    that has come by the binary log.
    """

    version: int
    gtid: Gtid
    parts: Sequence[bytes]
    write_set: AbstractSet[int] = frozenset()

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return sum(map(len, self.parts))


@dataclass(slots=True, eq=False, kw_only=True)
class Local:
    """A transaction of a backend; `write_set` are its items, `entry` is set once it is certified.
    `is_given_up`: its backend is gone, the companion executes it in its turn.
    """

    transaction_id: str
    pid: int
    write_set: AbstractSet[int]
    entry: Entry | None = None
    is_given_up: bool = False


class Grant(NamedTuple):
    """A backend may commit, once the transaction `after` has, if there is one."""

    local: Local
    after: Local | None


class Execute(NamedTuple):
    """Entries that the companion executes, in one transaction, once the transaction `after` has
    committed, if there is one.
    """

    entries: Sequence[Entry]
    after: Local | None


class CommitOrder:
    """The turns from one version on."""

    def __init__(self, version: int) -> None:
        """Begins behind `version`, the newest that is executed at the server."""
        self.version = version
        """The newest version that was granted, or handed out to be executed."""
        self.granted: deque[Local] = deque()
        """Backends that may commit and are not known to have ended, in their order."""
        self._in_flight: dict[Local, None] = {}
        self._waiting: dict[int, Local] = {}
        self._entries: deque[Entry] = deque()

    @property
    def is_settled(self) -> bool:
        """Whether every granted transaction has ended."""
        return not self.granted

    @property
    def entries_count(self) -> int:
        """The number of received transactions that wait."""
        return len(self._entries)

    @property
    def in_flight_count(self) -> int:
        """The number of backends' transactions that are being certified."""
        return len(self._in_flight)

    @property
    def waiting_count(self) -> int:
        """The number of backends' certified transactions that wait for their turn."""
        return len(self._waiting)

    def submitted(self, local: Local) -> None:
        """Notes that a transaction is being certified: the binary log may have it at any time."""
        self._in_flight[local] = None

    def decided(self, local: Local, entry: Entry) -> None:
        """Notes that a transaction is certified; it waits for its turn."""
        self._in_flight.pop(local, None)
        assert entry.version > self.version, "certified after its version was executed"
        local.entry = entry
        self._waiting[entry.version] = local

    def withdrawn(self, local: Local) -> None:
        """Notes that a transaction is not certified, or nobody knows; it takes no turn."""
        self._in_flight.pop(local, None)

    def received(self, entries: Iterable[Entry]) -> None:
        """Takes what the binary log has, in its order; what was executed is skipped."""
        self._entries.extend(entries)

    def next_step(self) -> Grant | Execute | None:
        """Returns the step that has its turn next, which then counts as done; None if there is
        none. An entry with the items of a transaction in flight may be that one, so it waits for
        the outcome.
        """
        while self._entries and self._entries[0].version <= self.version:
            self._entries.popleft()
        following = self.version + 1
        if self._entries and following not in self._waiting:
            following = self._entries[0].version  # No transaction has the versions before it.
        local = self._waiting.pop(following, None)
        if local is not None:
            return self._turn_of(local)
        batch: list[Entry] = []
        while self._entries and len(batch) < BATCH_TRANSACTIONS_MAX:
            entry = self._entries[0]
            # A certified backend's transaction has its turn as such, not as an entry of the log.
            if entry.version in self._waiting or self._may_be_in_flight(entry):
                break
            batch.append(self._entries.popleft())
        if not batch:
            return None
        self.version = batch[-1].version
        return Execute(batch, self._last_granted)

    def committed(self, local: Local) -> None:
        """Notes that the oldest granted transaction has committed."""
        assert self.granted[0] is local, "committed out of order"
        self.granted.popleft()

    def executed_for(self, local: Local) -> Local | None:
        """Notes that the companion has executed the oldest granted transaction in the place of its
        backend. Returns the transaction granted after it, which waits to be told.
        """
        self.committed(local)
        return self.granted[0] if self.granted else None

    def waiting_of(self, pid: int) -> Local | None:
        """Returns the certified transaction of a backend that waits for its turn."""
        found = (local for local in self._waiting.values() if local.pid == pid)
        return next((local for local in found if not local.is_given_up), None)

    @property
    def _last_granted(self) -> Local | None:
        return self.granted[-1] if self.granted else None

    def _turn_of(self, local: Local) -> Grant | Execute:
        assert local.entry is not None, "a turn before the verdict"
        self.version = local.entry.version
        after = self._last_granted
        if local.is_given_up:
            return Execute([local.entry], after)
        self.granted.append(local)
        return Grant(local, after)

    def _may_be_in_flight(self, entry: Entry) -> bool:
        # Executed here, it would wait for the locks of its own backend, which waits for this turn.
        return any(local.write_set == entry.write_set for local in self._in_flight)
