"""The records of the total order that certification takes, and the outcomes that it returns.

The values on the hot path are named tuples: one of each is made for every transaction, and making
a frozen dataclass of as many fields costs several times as much.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from .gtid import Gtid
from .gtid_set import GtidSet


class Verdict(IntEnum):
    """The decision of certification. Numbers are on the wire and in histories, and are never
    reused.
    """

    CERTIFIED = 1
    CONFLICT = 2
    TOO_OLD = 3
    REFUSED = 4


class Transaction(NamedTuple):
    """A transaction at its position in the total order.

    `snapshot` is the state that it read: a version (everything up to it) or, from a store of the
    caller's own, the GTID set executed there. `local` means that this observer executed it: it is
    not in the observer's relay queue.
    """

    position: int
    origin: str
    snapshot: int | GtidSet
    write_set: Sequence[int]
    read_set: Sequence[int] = ()
    gtid: Gtid | None = None
    local: bool = False


class ViewChange(NamedTuple):
    """A view change: members came or went. `resets_clock` is True if the observer is the one that
    joined (WL#8440, View_change_log_event).
    """

    position: int
    resets_clock: bool


class GarbageCollection(NamedTuple):
    """A stable set: all members have executed its transactions, so their items can be purged.

    `stable` is a version, or a GTID set where that is all that is known (traces).
    """

    position: int
    stable: int | GtidSet


class ExecutedElsewhere(NamedTuple):
    """Transactions that were executed before this history began, or beside it."""

    position: int
    gtid_set: GtidSet


Record = Transaction | ViewChange | GarbageCollection | ExecutedElsewhere


class Conflict(NamedTuple):
    """The reason of a CONFLICT: the item, and the transaction that wrote it first.

    The transaction would have passed with a snapshot of `winner_version` or later.
    """

    item: int
    winner_version: int
    winner_gtid: Gtid
    winner_origin: str
    winner_position: int
    snapshot_version: int
    position: int


class Outcome(NamedTuple):
    """The outcome of a transaction. Fields other than `verdict` and `reason` are set only if it was
    certified, except `conflict`.

    `version` counts certified transactions along the total order, and names the state after this
    one. The stamps are WL#8440's `trx.LC` and `trx.SN`; local transactions have none.
    """

    verdict: Verdict
    gtid: Gtid | None = None
    version: int = 0
    last_committed: int | None = None
    sequence_number: int | None = None
    conflict: Conflict | None = None
    reason: str = ""


class Collected(NamedTuple):
    """The result of a garbage collection: items purged so far, and the new edge of the window."""

    purged: int
    last_committed_global: int


VIEW_CHANGE_STAMPS = (0, 0)
"""`last_committed` and `sequence_number` of a view change: applied alone (WL#8440,
View_change_log_event).
"""
