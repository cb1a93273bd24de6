"""What goes into certification and what comes out: the records of the total order and their
outcomes.

The values on the hot path are named tuples: one of each is made for every transaction, and making
a frozen dataclass of as many fields costs several times as much.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from certifier.gtid import Gtid
from certifier.gtid_set import GtidSet
from certifier.history import POSITION_INDEX_BITS


def position_of(log_sequence: int, index: int) -> int:
    """The place of a record in the total order as one integer.

    >>> position_of(3, 1) > position_of(2, 1_048_575)
    True
    """
    assert 0 <= index < 1 << POSITION_INDEX_BITS, f"index {index} does not fit a position"
    return log_sequence << POSITION_INDEX_BITS | index


def log_sequence_of(position: int) -> int:
    """The log's sequence that a position lies in."""
    return position >> POSITION_INDEX_BITS


def log_index_of(position: int) -> int:
    """The index of a position's record within its message."""
    return position & (1 << POSITION_INDEX_BITS) - 1


class Verdict(IntEnum):
    """What certification decided. Numbers are on the wire and in histories, and are never used
    again.
    """

    CERTIFIED = 1
    CONFLICT = 2
    TOO_OLD = 3
    REFUSED = 4


class Transaction(NamedTuple):
    """A transaction at its place in the total order.

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
    """Members came or went. `resets_clock` where the observer is the one that joined (WL#8440,
    View_change_log_event).
    """

    position: int
    resets_clock: bool


class GarbageCollection(NamedTuple):
    """All members have executed the stable set: the items of its transactions can go.

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
    """Why a transaction lost: the item, and the transaction that wrote it first.

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
    """What became of a transaction. All but `verdict` and `reason` are None or 0 unless it was
    certified.

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
    """What a garbage collection did: items purged so far, and the window it left."""

    purged: int
    last_committed_global: int


VIEW_CHANGE_STAMPS = (0, 0)
"""`last_committed` and `sequence_number` of a view change: applied alone (WL#8440,
View_change_log_event).
"""
