"""The records of the log as plain values; `members/convert.py` turns them into bytes and back."""

from collections.abc import Sequence
from typing import NamedTuple

from certifier.gtid import Gtid
from certifier.gtid_set import GtidSet
from members.views import ViewMember

FORMAT_VERSION = 1
"""Of a log message; a member fences itself at one that it does not know."""
FRAMING_BYTES = 192
"""What a transaction takes in a message beside items, snapshot and row changes, at most."""
ITEM_BYTES = 8


class LoggedTransaction(NamedTuple):
    """A transaction as it stands in the log. `payload` is the store's row changes, opaque here; or,
    of a large one, a reference to its fragments (`applier/fragments.py`).
    """

    transaction_id: bytes
    snapshot: int | GtidSet
    write_set: Sequence[int]
    read_set: Sequence[int] = ()
    gtid: Gtid | None = None
    payload: bytes = b""
    report_applied: bool = False
    domain_id: int = 0


def bytes_of(transaction: LoggedTransaction) -> int:
    """What a transaction takes in a message, rounded up."""
    items = len(transaction.write_set) + len(transaction.read_set)
    snapshot = transaction.snapshot
    snapshot_bytes = 0 if isinstance(snapshot, int) else len(str(snapshot))
    return FRAMING_BYTES + ITEM_BYTES * items + snapshot_bytes + len(transaction.payload)


class ViewProposal(NamedTuple):
    """Counts if the group's view is `previous_view_id` at its place."""

    previous_view_id: int
    members: tuple[ViewMember, ...]


class StableReport(NamedTuple):
    """How far a member is, and the digest of its certification state after a message of the log.

    `applied_version` is visible there; `stable_version` is on its disk and no open snapshot there
    is older.
    """

    applied_version: int
    stable_version: int
    digest_log_sequence: int
    digest: bytes
    durable_log_sequence: int = 0
    """The last message that this run would not read again if it were started anew; 0: unknown."""
    history_place: int = 0
    """How far the member's certification log is written, as a place in it; 0: it keeps none."""
    history_chain: bytes = b""
    """The chain there."""


class GroupSettings(NamedTuple):
    """What all members must agree on. The first ones in the log make the group; later ones count if
    their version is the next one at their place, and come from a member of the view.
    """

    settings_version: int
    group: str
    group_uuid: str
    gtid_assignment_block_size: int
    gc_window: str
    write_set_items_max: int
    outcomes_max: int
    flow_control_lag_max: int = 0
    """Transactions that may be certified and not applied everywhere; 0: any number."""
    single_primary: bool = False
    members_allowed: tuple[str, ...] = ()
    """Names that may join; none: everybody may."""


SETTINGS_FIXED = ("group", "group_uuid", "outcomes_max")
"""Settings that a group keeps from its bootstrap on: what is stored depends on them."""


def is_change(before: GroupSettings, after: GroupSettings) -> bool:
    """Whether a group may go on with the later settings."""
    return all(getattr(before, name) == getattr(after, name) for name in SETTINGS_FIXED)


class Appointment(NamedTuple):
    """Makes a member of the view the primary; counts in single-primary mode only."""

    primary: str


class Abandonment(NamedTuple):
    """The transaction with that number of its run will not come; its fragments go."""

    number: int


Control = ViewProposal | StableReport | GroupSettings | Appointment | Abandonment


class Fragment(NamedTuple):
    """A piece of the changes of transaction `number` of its run, at its place among the pieces;
    `data` is compressed.
    """

    number: int
    place: int
    data: bytes


class LogBatch(NamedTuple):
    """One message of the log: what one run of one member had to say, in order."""

    member: str
    incarnation: int
    batch_number: int
    transactions: Sequence[LoggedTransaction] = ()
    controls: Sequence[Control] = ()
    fragments: Sequence[Fragment] = ()
