"""A large transaction on its way into the simulated log, step by step.

The rule it keeps: it does what `large_transactions/uploads.py` and `services/submitting.py` do,
and nothing of its own, but for senders that do not wait: they are wrong, and the group must not be.
"""

from collections.abc import Callable

from groupcert.certifier.records import Verdict
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.core.member import Member
from groupcert.members.core.publisher import Submission
from groupcert.members.large_transactions.fragment_store import Digest, compress
from groupcert.members.wire.pieces import split_payload

FRAGMENT_BYTES = 24
"""About a row, or a part of one."""
AHEAD = 2

Ended = Callable[[Submission | None], None]


class SimulatedUpload:
    """One of them, from its first fragment until its transaction is handed in."""

    def __init__(
        self,
        machine: Member,
        logged: LoggedTransaction,
        submit: Callable[[LoggedTransaction, Ended], None],
        refused: Callable[[], None],
        *,
        patient: bool,
    ) -> None:
        self._publisher = machine.publisher
        self._upload = machine.publisher.begin_upload(lambda: None)
        self._digest = Digest(machine.me.incarnation, self._upload.number)
        self._pieces = list(split_payload(logged.payload, FRAGMENT_BYTES))
        self._logged = logged
        self._submit = submit
        self._refused = refused
        self._patient = patient
        self._is_over = False

    def step(self) -> bool:
        """Sends what may be sent; True if there is nothing left to do."""
        if self._upload.is_refused and not self._is_over:
            self.hang_up()
            self._refused()
        if self._is_over:
            return True
        while self._pieces and self._upload.undelivered < AHEAD:
            piece = self._pieces.pop(0)
            place = self._digest.count
            self._digest.add(piece)
            self._publisher.fragment(self._upload, place, compress(piece))
        if self._pieces or (self._patient and self._upload.undelivered):
            return False
        self._is_over = True
        self._submit(self._logged._replace(payload=self._digest.reference()), self._ended)
        return True

    def hang_up(self) -> None:
        """The client has gone: the group forgets what it has, unless the transaction was sent."""
        if not self._is_over:
            self._is_over = True
            self._publisher.end_upload(self._upload, submitted=False)

    def _ended(self, submission: Submission | None) -> None:
        outcome = submission.outcomes[0] if submission else None
        kept = outcome is not None and outcome.verdict is not Verdict.REFUSED
        # Who did not wait may have fragments on their way behind the transaction.
        self._publisher.end_upload(self._upload, submitted=kept and self._patient)
