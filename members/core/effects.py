"""Effects of the state machine for its driver: `Delivered`, filled by `Member.deliver_in_steps`."""

from dataclasses import dataclass, field

from ...applier.queue.relay_group import RelayGroup
from ..errors.membership import RowsDiffer
from .fragment_sets import SetName
from .log_records import Fragment
from .members import Skipped
from .noted_decisions import Noted
from .publisher import Submission


@dataclass(slots=True)
class Delivered:
    """Effects of messages of the log: what the driver of a member has to do about them.

    `Member.deliver_in_steps` adds to it, message after message. Then its driver does in this order:

    1. Log each one of `skipped`.
    2. Store `fragments`, and remove those of `dropped`: an entry may refer to fragments, and the
       applier reads them from the store.
    3. Pass `entries` to the applier. It may execute them before they are stored: after a crash the
       log is read again from the state that was stored last.
    4. Answer each one of `ended` as soon as its version is visible here, and each one of
       `turned_away` at once.
    5. Fence the member if it is `doubted`.
    6. Keep `entries`, `noted` and `dropped` (`absorb`) until the state is stored: in one batch, so
       that the store never has a state without the entries that led to it.

    If a message raises, the driver still does all of this for the messages before it, and does
    not store the state.
    """

    entries: RelayGroup = field(default_factory=RelayGroup)
    """Entries for the relay queue, in the order of their positions."""
    ended: list[Submission] = field(default_factory=list)
    """Submissions of this member that are decided."""
    turned_away: list[Submission] = field(default_factory=list)
    """Submissions of this member that the group does not take from it; nothing of them was kept."""
    fragments: list[tuple[int, Fragment]] = field(default_factory=list)
    """Fragments to store, by incarnation."""
    dropped: list[SetName] = field(default_factory=list)
    """Sets of fragments that no entry will refer to any more."""
    noted: Noted = field(default_factory=Noted)
    """Rows for the certification log, where one is kept."""
    skipped: list[Skipped] = field(default_factory=list)
    """Messages that had no effect, because they are no valid messages of a member."""
    doubted: RowsDiffer | None = None
    """Most of the group has other rows than this member, which cannot be trusted."""
    decided_us: int = 0
    """When the messages were read, in microseconds since 1970."""

    def absorb(self, later: "Delivered") -> None:
        """Adds what has to be stored of later messages."""
        self.entries += later.entries
        self.noted.absorb(later.noted)
        self.dropped += later.dropped
