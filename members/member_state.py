"""What a member's mind is made with, and what it gives back."""

from dataclasses import dataclass, field
from enum import Enum

from applier.relay_queue import RelayEntry
from applier.source_header import SourceHeader
from certifier.core import CertifierOptions
from certifier.records import Verdict
from members.decisions import Noted
from members.fragment_sets import SetName
from members.log_records import Fragment, GroupSettings, LoggedTransaction
from members.publisher import BatchLimits, Submission
from members.skipped_messages import Skipped
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
    looks_on: bool = False
    """It sends nothing, and takes what bears the mark of its run for its own."""


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
    skipped: list[Skipped] = field(default_factory=list)
    """Messages that had no effect, as they are no valid messages of a member."""
    decided_us: int = 0
    """When the messages were read, in microseconds since 1970."""

    def absorb(self, later: "Delivered") -> None:
        """Adds what followed from later messages and has to be stored."""
        self.entries += later.entries
        self.noted.absorb(later.noted)
        self.dropped += later.dropped


def _none_yet() -> list[int]:
    return [0] * (1 + max(Verdict))


@dataclass(slots=True)
class Counters:
    """Transactions since the start, by what became of them."""

    verdicts: list[int] = field(default_factory=_none_yet)
    """By the verdict's number."""
    earlier: list[int] = field(default_factory=_none_yet)
    """What the log's transactions before those came to, in earlier runs or at a donor."""
    local: int = 0
    repeated: int = 0

    @property
    def log_verdicts(self) -> list[int]:
        """What all transactions of the log came to so far: the same at every member."""
        return [here + before for here, before in zip(self.verdicts, self.earlier, strict=True)]


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
