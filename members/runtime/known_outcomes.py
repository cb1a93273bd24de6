"""What a member knows of clients' transactions by their ids, for those who ask it.

It reads the member's table of outcomes where it stands: a run that loads its state has another one.
"""

from ...certifier.records import Outcome
from ..core.log_records import LoggedTransaction
from ..core.member import Member
from ..core.repetitions import passes_again
from ..errors.transactions import OutcomeUnknown


class KnownOutcomes:
    """The outcomes that one run's member remembers."""

    def __init__(self, member: Member) -> None:
        self._member = member

    @property
    def forgotten_version(self) -> int:
        """Outcomes of transactions up to this version may be forgotten."""
        return self._member.outcomes.forgotten_version

    def get(self, transaction_id: bytes) -> Outcome | None:
        """Returns the outcome of a transaction, or None if it is not known any more."""
        return self._member.outcomes.get(transaction_id)

    def is_pending(self, transaction_id: bytes) -> bool:
        """Returns whether a transaction was handed in here and is not decided."""
        return self._member.publisher.holds(transaction_id)

    def passes_again(self, logged: LoggedTransaction) -> bool:
        """Returns whether a transaction may be a repetition that would be certified once more."""
        return passes_again(self._member.certifier, self._member.outcomes, logged)

    @property
    def problem(self) -> str:
        """Why nobody can say what became of a transaction whose outcome may be forgotten."""
        return f"outcomes up to version {self.forgotten_version} are forgotten, perhaps its own"

    def unknown(self, transaction_id: bytes) -> OutcomeUnknown:
        """Returns the error of such a transaction."""
        return OutcomeUnknown(transaction_id=transaction_id, cause=self.problem)
