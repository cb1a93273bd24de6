"""The order of commits at a server: local transactions take their turn among those of others.

Every certified transaction of the group has a version; they become visible at the server one after
the other, by their versions, so that a snapshot of the server is a prefix of the total order and
its largest version says which one. A local transaction is a backend that waits in its COMMIT; one
of others is executed by the member.

`CommitOrder` is a state machine; whoever drives it (`server.py`) does this:

    1. calls `received` with entries of the total order, in order, and then `decided` for those of
       them that are local;
    2. calls `next_step` after each of these until it returns None, and does what it returns: lets
       a backend commit, executes entries, or takes the rows that are to be compared;
    3. asks the server now and then how the transactions in `granted` ended, and calls `committed`
       for each that did; one that did not (its backend died) it executes itself, then calls
       `executed_for`.

Whoever has its turn behind a granted transaction waits for the end of that in the server, without a
round trip: in the lock of its transaction id.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...certifier.gtid import Gtid

BATCH_TRANSACTIONS_MAX = 64
"""Transactions of others that are executed in one transaction of the server."""


class Entry(NamedTuple):
    """A certified transaction, at its position in the total order; `parts` are its rows (see
    `rows_in`), of `size` bytes.
    """

    version: int
    gtid: Gtid
    parts: Iterable[bytes]
    position: int = -1
    size: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Local:
    """A certified transaction of a backend. `is_given_up`: its backend is gone, the member executes
    it in its turn.
    """

    transaction_id: str
    pid: int
    entry: Entry
    is_given_up: bool = False


class Grant(NamedTuple):
    """A backend may commit, once the transaction `after` has, by its id; None: there is none."""

    local: Local
    after: str | None


class Execute(NamedTuple):
    """Entries that the member executes, in one transaction, once the transaction `after` has
    committed, if there is one.
    """

    entries: Sequence[Entry]
    after: str | None


class Take(NamedTuple):
    """The rows are to be taken as of a version, for the comparison at a position: once the
    transaction `after` has committed, if there is one, and before anything else has its turn.
    """

    version: int
    position: int
    after: str | None


class CommitOrder:
    """The turns from one version on."""

    def __init__(self, version: int) -> None:
        """Begins behind `version`, the newest that is executed at the server."""
        self.version = version
        """The newest version that was granted, or handed out to be executed."""
        self.granted: deque[Local] = deque()
        """Backends that may commit and are not known to have ended, in their order."""
        self._waiting: dict[int, Local] = {}
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._take: Take | None = None

    @property
    def is_settled(self) -> bool:
        """Whether every granted transaction has ended."""
        return not self.granted

    @property
    def entries_count(self) -> int:
        """The number of received transactions that wait."""
        return len(self._entries)

    @property
    def waiting_count(self) -> int:
        """The number of backends' certified transactions that wait for their turn."""
        return len(self._waiting)

    @property
    def first_version(self) -> int:
        """The first version that was received and has not had its turn; 0: none."""
        return next(iter(self._entries), 0)

    def decided(self, version: int, transaction_id: str, pid: int) -> Local:
        """Notes that a received transaction is a backend's, which waits for its turn."""
        entry = self._entries.pop(version)
        local = Local(transaction_id=transaction_id, pid=pid, entry=entry)
        self._waiting[version] = local
        return local

    def received(self, entries: Iterable[Entry]) -> None:
        """Takes entries in their order."""
        self._entries.update((entry.version, entry) for entry in entries)

    def take_after(self, version: int, position: int) -> None:
        """Has the rows taken behind a version, of which nothing later has had its turn; an earlier
        such wish is given up.
        """
        assert version >= self.version, "what comes later has had its turn"
        self._take = Take(version, position, None)

    def next_step(self) -> Grant | Execute | Take | None:
        """Returns the step that has its turn next, which then counts as done; None if there is
        none.
        """
        take = self._take
        if take is not None and take.version == self.version:
            self._take = None
            return take._replace(after=self._last_granted)
        if (local := self._waiting.pop(self.version + 1, None)) is not None:
            return self._turn_of(local)
        batch: list[Entry] = []
        following = self.version + 1
        last = self.version + BATCH_TRANSACTIONS_MAX
        if take is not None:
            last = min(last, take.version)
        while following <= last and following in self._entries:
            batch.append(self._entries.pop(following))
            following += 1
        if not batch:
            return None
        self.version = batch[-1].version
        return Execute(batch, self._last_granted)

    def committed(self, local: Local) -> None:
        """Notes that the oldest granted transaction has committed."""
        assert self.granted[0] is local, "committed out of order"
        self.granted.popleft()

    def executed_for(self, local: Local) -> Local | None:
        """Notes that the member has executed the oldest granted transaction in the place of its
        backend. Returns the transaction granted after it, which waits to be told.
        """
        self.committed(local)
        return self.granted[0] if self.granted else None

    def waiting_of(self, pid: int) -> Local | None:
        """Returns the certified transaction of a backend that waits for its turn."""
        found = (local for local in self._waiting.values() if local.pid == pid)
        return next((local for local in found if not local.is_given_up), None)

    @property
    def _last_granted(self) -> str | None:
        return self.granted[-1].transaction_id if self.granted else None

    def _turn_of(self, local: Local) -> Grant | Execute:
        self.version = local.entry.version
        after = self._last_granted
        if local.is_given_up:
            return Execute([local.entry], after)
        self.granted.append(local)
        return Grant(local, after)
