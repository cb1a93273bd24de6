"""What a member's mind is made with, what it gives back, and what of it is stored."""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypedDict

from applier.relay_queue import RelayEntry
from applier.source_header import SourceHeader
from certifier.core import CertifierOptions
from certifier.records import Verdict
from members.decisions import Noted
from members.fragment_sets import SetName
from members.log_records import Fragment, GroupSettings, LoggedTransaction
from members.publisher import BatchLimits, Submission
from members.views import ViewMember


class MemberState(Enum):
    """What a member is up to (design, section 5); numbers as on the wire."""

    OFFLINE = 1
    JOINING = 2
    RECOVERING = 3
    ONLINE = 4
    ERROR = 5
    FENCED = 6
    LEFT = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """What one member decides for itself.

    `stable_period_ms`: how often it reports how far it is; `stable_items`: how many write-set items
    recorded since the last report make it report at once. `suspicion_ms`: how long another member
    may be silent before it is suspected, `expel_ms`: and how much longer until it is expelled.
    `unreachable_ms`: how long the log may be out of reach before this member gives up; 0: forever.
    """

    me: ViewMember
    settings: GroupSettings
    batches: BatchLimits = field(default_factory=BatchLimits)
    stable_period_ms: int = 1_000
    stable_items: int = 100_000
    suspicion_ms: int = 5_000
    expel_ms: int = 5_000
    unreachable_ms: int = 0


@dataclass(slots=True)
class Delivered:
    """What follows from the messages delivered since it was made, in order."""

    entries: list[RelayEntry] = field(default_factory=list)
    """For the relay queue."""
    ended: list[Submission] = field(default_factory=list)
    """Own submissions that are decided."""
    turned_away: list[Submission] = field(default_factory=list)
    """Own submissions that the group does not take from this member; nothing of them was kept."""
    fragments: list[tuple[int, Fragment]] = field(default_factory=list)
    """By incarnation; to be stored before anything else here is handed on or stored."""
    dropped: list[SetName] = field(default_factory=list)
    """Sets of fragments that nobody will ask for."""
    noted: Noted = field(default_factory=Noted)
    """Where a history is kept: what belongs into it."""
    decided_us: int = 0
    """When the messages were read, in microseconds since 1970."""

    def absorb(self, later: "Delivered") -> None:
        """Adds what followed from later messages and has to be stored."""
        self.entries += later.entries
        self.noted.absorb(later.noted)
        self.dropped += later.dropped


class MemberCheckpoint(TypedDict):
    """What JSON can carry of a member's mind beside the certifier."""

    log_sequence: int
    view_id: int
    view: list[tuple[str, int, str, int]]
    primary: str
    settings: list[object]
    batch_numbers: list[tuple[int, int]]
    reports: list[tuple[int, int, int]]
    fragment_sets: list[tuple[int, int, str, int]]


@dataclass(slots=True)
class Counters:
    """Transactions since the start, by what became of them."""

    verdicts: list[int] = field(default_factory=lambda: [0] * (1 + max(Verdict)))
    """By the verdict's number."""
    local: int = 0
    repeated: int = 0


def certifier_options(settings: GroupSettings) -> CertifierOptions:
    """What the group's settings mean to its certifiers."""
    return CertifierOptions(
        group_source=settings.group_uuid,
        gtid_assignment_block_size=settings.gtid_assignment_block_size,
        gc_window=settings.gc_window,
    )


def header_of(logged: LoggedTransaction, applied_version: int, locked_version: int) -> SourceHeader:
    """What the binary log will have to know of a transaction: it is about to prepare.

    Args:
        applied_version: What is visible here now.
        locked_version: What was visible when its commit was asked for here; 0: elsewhere.
    """
    snapshot = logged.snapshot
    return SourceHeader(
        applied_version,
        0,
        logged.domain_id,
        None,
        None,
        logged.write_set,
        0,
        0,
        0,
        max(locked_version, snapshot) if isinstance(snapshot, int) else None,
    )
