"""The records of the log as plain values; `wire/log_batches.py` turns them into bytes and back."""

from collections.abc import Sequence
from typing import NamedTuple, overload

from ...applier.queue.fragment_references import is_reference
from ...certifier.gtid import Gtid
from ...certifier.gtid_set import GtidSet
from ...certifier.plain_runs import PlainTransactions
from .views import ViewMember

FIELDS_MAX = 65_536
"""Most fields of a message: its transactions, control records and fragments, and the four that say
whose it is. A message of 8 MiB that clients' transactions fill has fewer."""
CONTROL_BYTES_MAX = 2 * FIELDS_MAX
"""Most bytes of a message's control records, together: views of 300 members. No smaller message has
too many fields: each takes two bytes."""
TRANSACTIONS_MAX = 4_096
"""Most transactions of a message: its reader makes them at once, in 10 ms."""
GTID_SETS_BYTES_MAX = (1 << 20) + (256 << 10)
"""Most bytes of the snapshots of a message that are GTID sets, together: a request of 1 MiB behind
as much as a message takes before it is full. A megabyte takes its reader 150 ms."""
LARGE_NUMBER_MAX = 2**63 - 1
"""Largest number of a large transaction; a store's key has room for one more."""
COLUMNS_MIN, COLUMN_ITEMS_MIN = 4, 64
"""Transactions of a message, or their items, from which on they go as columns: fewer are faster as
they are."""
RANGES, RANGE_BYTES = 256, 8
"""Ranges that rows are compared by, and bytes of the digest of each."""
FRAMING_BYTES = 192
"""Most bytes of a transaction in a message, beside items, snapshot and row changes."""
ITEM_BYTES = 8


class LoggedTransaction(NamedTuple):
    """A transaction as it stands in the log. `payload` is the store's row changes, opaque here; or,
    of a large one, a reference to its fragments (`applier/queue/fragment_references.py`).
    """

    transaction_id: bytes
    snapshot: int | GtidSet
    write_set: Sequence[int]
    read_set: Sequence[int] = ()
    gtid: Gtid | None = None
    payload: bytes = b""
    report_applied: bool = False
    domain_id: int = 0


class PlainColumns(Sequence[LoggedTransaction]):
    """Transactions that have only an id, a snapshot version, a write set and row changes, as
    columns of equal length: what nearly all messages of the log have. A transaction is made of them
    where one is asked for.
    """

    __slots__ = ("ids", "payloads", "snapshots", "write_sets")

    def __init__(
        self,
        ids: Sequence[bytes],
        snapshots: Sequence[int],
        write_sets: Sequence[Sequence[int]],
        payloads: Sequence[bytes],
    ) -> None:
        assert len(ids) == len(snapshots) == len(write_sets) == len(payloads)
        self.ids, self.snapshots = ids, snapshots
        self.write_sets, self.payloads = write_sets, payloads

    @classmethod
    def of(cls, transactions: Sequence[LoggedTransaction]) -> "PlainColumns | None":
        """Returns transactions as columns; None if they are small and few, or one is not plain."""
        if len(transactions) < COLUMNS_MIN:
            if sum(len(each.write_set) for each in transactions) < COLUMN_ITEMS_MIN:
                return None
        columns = zip(*transactions, strict=True)
        ids, snapshots, write_sets, read_sets, gtids, payloads, reports, domains = columns
        if any(read_sets) or any(gtids) or any(reports) or any(domains):
            return None
        if any(map(is_reference, payloads)) or not all(type(each) is int for each in snapshots):
            return None
        return cls(ids, snapshots, write_sets, payloads)

    def at(self, position: int, origin: str, *, local: bool) -> PlainTransactions:
        """Returns them as the certifier takes them, from their first position on."""
        return PlainTransactions(position, origin, local, self.snapshots, self.write_sets)

    @overload
    def __getitem__(self, index: int) -> LoggedTransaction: ...
    @overload
    def __getitem__(self, index: slice) -> "PlainColumns": ...
    def __getitem__(self, index: int | slice) -> "LoggedTransaction | PlainColumns":
        if isinstance(index, slice):
            return PlainColumns(
                self.ids[index],
                self.snapshots[index],
                self.write_sets[index],
                self.payloads[index],
            )
        return LoggedTransaction(
            self.ids[index],
            self.snapshots[index],
            self.write_sets[index],
            payload=self.payloads[index],
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


def bytes_of(transaction: LoggedTransaction) -> int:
    """Returns the bytes that a transaction takes in a message, rounded up; a set of GTIDs counts
    several times its bytes, as it takes readers several times as long.
    """
    items = len(transaction.write_set) + len(transaction.read_set)
    snapshot = transaction.snapshot
    snapshot_bytes = 0 if isinstance(snapshot, int) else snapshot.text_bytes_max()
    return FRAMING_BYTES + ITEM_BYTES * items + snapshot_bytes + len(transaction.payload)


class ViewProposal(NamedTuple):
    """Counts if the group's view is `previous_view_id` at its position."""

    previous_view_id: int
    members: tuple[ViewMember, ...]
    cause: int = 0
    """Why members leave the view: a number of `members/core/members.py`."""
    proposed_us: int = 0
    """By the proposer's clock, since 1970; 0: unknown."""


class MemberReport(NamedTuple):
    """How far a member is, with the digest of its certification state after a message of the log.

    `applied_version` is visible there; `stable_version` is on its disk and no open snapshot there
    is older.
    """

    applied_version: int
    stable_version: int
    digest_log_sequence: int
    digest: bytes
    durable_log_sequence: int = 0
    """The last message that this run would not read again after a restart; 0: unknown."""
    history_place: int = 0
    """How far the member's certification log is written, as a place in it; 0: it keeps none."""
    history_chain: bytes = b""
    """The digest chain of the certification log at that place."""


class GroupSettings(NamedTuple):
    """Settings on which all members must agree. The first ones in the log make the group; later
    ones count if their version is the next one at their position, and a member of the view sent
    them.
    """

    settings_version: int
    group: str
    group_uuid: str
    gtid_assignment_block_size: int
    gc_window: str
    write_set_items_max: int
    outcomes_max: int
    flow_control_lag_max: int = 0
    """Transactions that may be certified and not applied everywhere; 0: no limit."""
    single_primary: bool = False
    members_allowed: tuple[str, ...] = ()
    """Names that may join; empty: any name."""
    postgresql_tables: tuple[str, ...] = ()
    """Patterns of tables whose rows are reserved; empty: none are."""


SETTINGS_FIXED = ("group", "group_uuid", "outcomes_max")
"""Settings that a group keeps from its bootstrap on: what is stored depends on them."""


def is_change(before: GroupSettings, after: GroupSettings) -> bool:
    """Returns whether a group may go on with the settings `after`."""
    return all(getattr(before, name) == getattr(after, name) for name in SETTINGS_FIXED)


class Appointment(NamedTuple):
    """Makes a member of the view the primary; counts in single-primary mode only."""

    primary: str


class Abandonment(NamedTuple):
    """Says that the transaction with that number of its run will not come; its fragments go."""

    number: int


class Forgetting(NamedTuple):
    """Removes a member from the list of the departed; counts if a member of the view sends it."""

    member: str


class Skip(NamedTuple):
    """Members that cannot read a message before this one skip it; others have read it."""

    log_sequence: int


class Comparison(NamedTuple):
    """Asks every member of the view for digests of its rows as of this record; counts if a member
    of the view sends it.
    """

    requested_us: int
    """By the asker's clock, since 1970."""


class RowDigests(NamedTuple):
    """Digests of a member's rows as of the comparison at `position`."""

    position: int
    rows: int
    digests: bytes
    """`RANGE_BYTES` of each range; the hash of a key says which one it is in."""
    tables: int = 0
    """Where a PostgreSQL server keeps the rows: a hash of the names of its attached tables. Members
    with others are not compared: an operator may be attaching a table at one after the other."""

    def of_range(self, number: int) -> bytes:
        """Returns the digest of a range."""
        return self.digests[RANGE_BYTES * number : RANGE_BYTES * (number + 1)]


Control = (
    ViewProposal
    | MemberReport
    | GroupSettings
    | Appointment
    | Abandonment
    | Forgetting
    | Skip
    | Comparison
    | RowDigests
)


class Fragment(NamedTuple):
    """Piece `place` of the changes of transaction `number` of its run; `data` is compressed."""

    number: int
    place: int
    data: bytes


class LogBatch(NamedTuple):
    """One message of the log: records that one run of one member sent, in order."""

    member: str
    incarnation: int
    batch_number: int
    transactions: Sequence[LoggedTransaction] = ()
    controls: Sequence[Control] = ()
    fragments: Sequence[Fragment] = ()
    encoded: bytes = b""
    """The message itself, where it was read from one; a member recognizes its own ones by it."""
    format_version: int = 0
    """Format of the message, where it was read from one."""


class Unreadable(NamedTuple):
    """A message of the log that is no batch, or none in this release's format; and its claims."""

    problem: str
    member: str = ""
    incarnation: int = 0
    batch_number: int = 0
    format_version: int = 0
    """Format of a batch in a later format; else 0."""
    encoded: bytes = b""


Message = LogBatch | Unreadable
