"""The records of the log as plain values; `members/convert.py` turns them into bytes and back."""

from collections.abc import Sequence
from typing import NamedTuple

from certifier.gtid import Gtid
from certifier.gtid_set import GtidSet
from members.views import ViewMember

FORMAT_VERSION = 1
"""Of a log message; a member fences itself at a member's message in one that it does not know."""
FIELDS_MAX = 65_536
"""Of a message: its transactions, control records and fragments, and the four that say whose it is.
A message of 8 MiB has fewer that a client can have handed in."""
CONTROL_BYTES_MAX = 2 * FIELDS_MAX
"""Of a message's control records, together: views of 300 members. No smaller message has too many
fields: each takes two bytes."""
LARGE_NUMBER_MAX = 2**63 - 1
"""Of the number of a large transaction; a store's key has room for one more."""
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
    """What a transaction takes in a message, rounded up; a set of GTIDs several times its bytes, as
    it takes readers several times as long.
    """
    items = len(transaction.write_set) + len(transaction.read_set)
    snapshot = transaction.snapshot
    snapshot_bytes = 0 if isinstance(snapshot, int) else snapshot.text_bytes_max()
    return FRAMING_BYTES + ITEM_BYTES * items + snapshot_bytes + len(transaction.payload)


class ViewProposal(NamedTuple):
    """Counts if the group's view is `previous_view_id` at its place."""

    previous_view_id: int
    members: tuple[ViewMember, ...]
    cause: int = 0
    """Why somebody goes, a number of `members/departures.py`."""
    proposed_us: int = 0
    """By the clock of who proposes it, since 1970; 0: not known."""


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


class Forgetting(NamedTuple):
    """A member that has departed is named no more; counts if a member of the view says so."""

    member: str


class Skip(NamedTuple):
    """Members that cannot read a message before this one skip it; others have read it."""

    log_sequence: int


Control = (
    ViewProposal | StableReport | GroupSettings | Appointment | Abandonment | Forgetting | Skip
)


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
    encoded: bytes = b""
    """The message itself, where it was read from one; a member knows its own ones by it."""


class Unreadable(NamedTuple):
    """A message of the log that is no batch, or none in this release's format; and what it claims
    to be.
    """

    problem: str
    member: str = ""
    incarnation: int = 0
    batch_number: int = 0
    format_version: int = 0
    """Of a batch in another format; else 0."""
    encoded: bytes = b""


Message = LogBatch | Unreadable
