"""Options of one member's state machine, and the certifier's options from the group's settings."""

from dataclasses import dataclass, field

from ...certifier.core import CertifierOptions
from .log_records import GroupSettings
from .publisher import BatchLimits
from .views import ViewMember


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """Options that one member sets for itself.

    `stable_period_ms`: milliseconds between its reports; `stable_items`: write-set items recorded
    since the last report that make it report at once, which bounds what a second of full load adds
    to certification info. `suspicion_ms`: how long another member may
    be silent before it is suspected, `expel_ms`: and how much longer until it is expelled.
    `unreachable_ms`: how long the log may be out of reach before this member gives up; 0: forever.
    `snapshot_hold_versions`: how many versions a snapshot keeps from being collected at most, past
    which its transaction is too old: some minutes of full load, 500 MB of certification info.
    """

    me: ViewMember
    settings: GroupSettings
    batches: BatchLimits = field(default_factory=BatchLimits)
    stable_period_ms: int = 1_000
    stable_items: int = 100_000
    suspicion_ms: int = 5_000
    expel_ms: int = 5_000
    unreachable_ms: int = 0
    snapshot_hold_versions: int = 1_000_000
    looks_on: bool = False
    """It sends nothing, and takes messages of its run for its own."""


def certifier_options(settings: GroupSettings) -> CertifierOptions:
    """Returns the certifiers' options that the group's settings stand for."""
    return CertifierOptions(
        group_source=settings.group_uuid,
        gtid_assignment_block_size=settings.gtid_assignment_block_size,
        gc_window=settings.gc_window,
    )
