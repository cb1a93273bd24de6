"""What this member wants in the log: batched, numbered, and kept until it is read back.

The rule it keeps: batches are numbered, and a reader skips a batch whose number is not above the
last one read of the same run. So a batch may be sent any number of times and counts once, and a
batch that was overtaken counts never: its transactions are sent again under a new number. Nothing
is decided by an acknowledgement. Pure.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from certifier.records import Outcome
from members.log_records import Control, LogBatch, LoggedTransaction, bytes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """When a message is full, and when it goes.

    A message goes when none is on its way, or once `transactions_min` wait and fewer than `window`
    are: what arrives meanwhile goes into the next one, so batches grow with the load. Clients that
    were answered together come back together, and a message waits up to `linger_ms` for as many as
    the last one answered: a message costs every member and the log far more than a transaction.
    """

    transactions_max: int = 128
    transactions_min: int = 32
    bytes_max: int = 256 << 10
    window: int = 4
    linger_ms: int = 5


class Submission:
    """Transactions that a client handed in together; it ends when all of them are decided.

    With no transactions it marks a place in the order: it ends when the batch that carries it is
    read back.
    """

    __slots__ = (
        "_undecided",
        "batch_number",
        "done",
        "locked_since",
        "log_sequence",
        "outcomes",
        "taken_seconds",
        "transactions",
        "version",
    )

    def __init__(
        self, transactions: Sequence[LoggedTransaction], done: Callable[["Submission"], None]
    ) -> None:
        self.transactions = transactions
        self.done = done
        self.outcomes: list[Outcome | None] = [None] * len(transactions)
        self.locked_since = 0
        """The version that was visible at its member when it was handed in."""
        self.version = 0
        self.log_sequence = 0
        self.batch_number = 0
        self.taken_seconds = 0.0
        self._undecided = len(transactions)

    def decide(self, index: int, outcome: Outcome) -> bool:
        """Notes what became of one transaction; True if it was the last one."""
        assert self.outcomes[index] is None
        self.outcomes[index] = outcome
        if outcome.version > self.version:
            self.version = outcome.version
        self._undecided -= 1
        return self._undecided == 0


Part = tuple[Submission, int]
"""A transaction of a submission by its index; -1 stands for a submission without any."""


class Publisher:
    """The queue of one run of a member, and its batches that were not read back yet."""

    def __init__(self, member: str, incarnation: int, limits: BatchLimits) -> None:
        self._member = member
        self._incarnation = incarnation
        self._limits = limits
        self._waiting: deque[Part] = deque()
        self._controls: list[Control] = []
        self._sent: dict[int, tuple[list[Part], Sequence[Control]]] = {}
        self._batch_number = 0
        self._cohort = 0

    def submit(self, submission: Submission) -> None:
        """Queues a submission."""
        count = len(submission.transactions)
        self._waiting.extend((submission, index) for index in range(count) or (-1,))

    def control(self, control: Control) -> None:
        """Queues a control record; it goes out with the next batch."""
        self._controls.append(control)

    def next_batch(self, *, lingered: bool = True) -> LogBatch | None:
        """The next batch to send now, or None where it is better to wait.

        Args:
            lingered: What waits has waited for `linger_ms`, and shall not any longer.
        """
        waiting = len(self._waiting)
        if not waiting and not self._controls:
            return None
        if waiting < self._limits.transactions_min:
            if self._sent or (0 < waiting < self._cohort and not lingered):
                return None
        elif len(self._sent) >= self._limits.window:
            return None
        parts = self._take()
        controls, self._controls = self._controls, []
        self._batch_number += 1
        self._sent[self._batch_number] = (parts, controls)
        transactions = [submission.transactions[index] for submission, index in parts if index >= 0]
        return LogBatch(self._member, self._incarnation, self._batch_number, transactions, controls)

    def read_back(self, batch_number: int) -> list[Part]:
        """The parts of a batch that was read from the log; batches it overtook are queued again.

        None where nobody waits for it any more: it was read before, was overtaken, or was given up.
        """
        overtaken = [number for number in self._sent if number < batch_number]
        for number in reversed(overtaken):
            parts, controls = self._sent.pop(number)
            self._waiting.extendleft(reversed(parts))
            self._controls[:0] = controls
        parts, _ = self._sent.pop(batch_number, ([], ()))
        self._cohort = len(parts) + len(self._waiting)
        return parts

    @property
    def lingers(self) -> bool:
        """Whether something waits for nothing but company."""
        return bool(self._waiting) and not self._sent

    @property
    def waiting(self) -> int:
        """Transactions and marks that are queued and not sent."""
        return len(self._waiting)

    @property
    def undecided(self) -> int:
        """Transactions and marks that were handed in and not read back."""
        return len(self._waiting) + sum(len(parts) for parts, _ in self._sent.values())

    def holds(self, transaction_id: bytes) -> bool:
        """Whether a transaction was handed in and is not read back. Cost: O(undecided)."""
        parts = chain(self._waiting, *(sent for sent, _ in self._sent.values()))
        return any(
            index >= 0 and submission.transactions[index].transaction_id == transaction_id
            for submission, index in parts
        )

    def abandon(self) -> list[Submission]:
        """Gives up: every submission that is not decided, each once, in order."""
        parts = [part for sent, _ in self._sent.values() for part in sent] + list(self._waiting)
        self._sent.clear()
        self._waiting.clear()
        return list(dict.fromkeys(submission for submission, _ in parts))

    def _take(self) -> list[Part]:
        """The longest run of queued parts that fits a message; at least one part if any waits."""
        parts: list[Part] = []
        bytes_left = self._limits.bytes_max
        while self._waiting and len(parts) < self._limits.transactions_max:
            submission, index = self._waiting[0]
            if index >= 0:
                bytes_left -= bytes_of(submission.transactions[index])
                if bytes_left < 0 and parts:
                    break
            parts.append(self._waiting.popleft())
        return parts
