"""Queues what this member wants in the log: batched, numbered, and kept until it is read back.

The rule it keeps: batches are numbered, and a reader skips a batch whose number is not above the
last one read of the same run. So a batch may be sent any number of times and counts once, and a
batch that was overtaken never counts: its transactions are sent again under a new number. An
acknowledgement decides nothing. Pure.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from ...certifier.records import Outcome
from .flow_control import UNLIMITED
from .held_versions import HeldVersions
from .log_records import (
    Abandonment,
    Control,
    Fragment,
    LogBatch,
    LoggedTransaction,
    MemberReport,
    Message,
    bytes_of,
)

LINGER_MS = 5
"""Milliseconds that a message waits for the transactions of clients that were answered together:
about what they need to come back on a busy machine. A lone client never waits."""
WINDOW = 4
"""Messages in flight: enough for the time of a round trip; more would be smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of a message's size, and of the time until it goes.

    A message goes when none is on its way, or once `transactions_min` wait and fewer than `window`
    are: what arrives meanwhile goes into the next one, so batches grow with the load. Clients that
    were answered together come back together, and a message waits up to `linger_ms` for as many as
    the last one answered: a message costs every member and the log far more than a transaction.
    More than `transactions_max` gain little and wait longer; a log server syncs `bytes_max` about
    as quickly as a small message.

    A fragment of a large transaction is a message of its own; `fragments_window` of them may be on
    their way, beside the other messages and without holding these up.
    """

    transactions_max: int = 128
    transactions_min: int = 32
    bytes_max: int = 256 << 10
    window: int = WINDOW
    linger_ms: int = LINGER_MS
    fragments_window: int = 1


class Submission:
    """Transactions that a client handed in together; it ends when all of them are decided.

    With no transactions it marks a position in the order: it ends when the batch that carries it is
    read back.
    """

    __slots__ = (
        "_undecided",
        "batch_number",
        "decided",
        "done",
        "is_withdrawn",
        "locked_since",
        "log_sequence",
        "outcomes",
        "release",
        "taken_seconds",
        "transactions",
        "version",
    )

    def __init__(
        self,
        transactions: Sequence[LoggedTransaction],
        done: Callable[["Submission"], None],
        decided: Callable[["Submission"], None] | None = None,
    ) -> None:
        self.transactions = transactions
        self.done = done
        self.decided = decided
        """Is called before, when all are decided and the applier has those that are certified."""
        self.outcomes: list[Outcome | None] = [None] * len(transactions)
        self.release: Callable[[], None] | None = None
        """Lets collection pass the snapshots of the transactions."""
        self.locked_since = 0
        """The version that was visible at its member when it was handed in."""
        self.version = 0
        self.log_sequence = 0
        self.batch_number = 0
        self.taken_seconds = 0.0
        self.is_withdrawn = False
        """Nothing of it was sent, and nothing will be."""
        self._undecided = len(transactions)

    def end(self) -> None:
        """Releases the snapshots and calls the waiter of this submission, each once, and drops the
        references to them: otherwise they would form a cycle that holds all rows until Python's
        garbage collector runs.
        """
        if self.release:
            self.release()
            self.release = None
        done, self.done = self.done, _tell_nobody
        done(self)

    def decide(self, index: int, outcome: Outcome) -> bool:
        """Notes the outcome of transaction `index`; returns True if it was the last one."""
        assert self.outcomes[index] is None
        self.outcomes[index] = outcome
        if outcome.version > self.version:
            self.version = outcome.version
        self._undecided -= 1
        return self._undecided == 0

    @property
    def is_untouched(self) -> bool:
        """True while none of its transactions is decided."""
        return self._undecided == len(self.transactions)


def _tell_nobody(_ended: Submission) -> None:
    """Ignores the end: no caller waits any longer."""


Part = tuple[Submission, int]
"""A transaction of a submission by its index; -1 stands for a submission without transactions."""


def end_parts(
    parts: Iterable[Part], outcomes: Iterable[Outcome], version: int, place: tuple[int, int]
) -> Iterator[Submission]:
    """Decides the parts of a batch that was read back, and yields the submissions that end with it.

    Args:
        outcomes: Outcomes of the batch's transactions, in their order.
        version: The newest one there is, with which a mark ends.
        place: The batch's message in the log, and its number.
    """
    decided = iter(outcomes)
    for submission, index in parts:
        if index < 0:
            submission.version = version
        elif not submission.decide(index, next(decided)):
            continue
        submission.log_sequence, submission.batch_number = place
        yield submission


class Upload:
    """The fragments of one large transaction on their way into the log."""

    __slots__ = ("changed", "is_refused", "number", "undelivered")

    def __init__(self, number: int, changed: Callable[[], None]) -> None:
        self.number = number
        self.changed = changed
        """Called when one of the other fields changes."""
        self.undelivered = 0
        """Fragments that were handed in and not read back."""
        self.is_refused = False
        """The group does not take it from this member, or the member has given up."""


@dataclass(slots=True)
class _Sent:
    """A batch that was not read back; `encoded` is the message that was sent."""

    parts: list[Part]
    controls: Sequence[Control] = ()
    fragment: tuple[Upload, Fragment] | None = None
    encoded: bytes = b""


class Publisher:
    """The queue of one run of a member, and its batches that were not read back yet."""

    def __init__(
        self, member: str, incarnation: int, limits: BatchLimits, held: HeldVersions
    ) -> None:
        """Begins with an empty queue; until submissions end, their snapshots are among `held`."""
        self._held = held
        self._member = member
        self._incarnation = incarnation
        self._limits = limits
        self._waiting: deque[Part] = deque()
        self._controls: list[Control] = []
        self._sent: dict[int, _Sent] = {}
        self._batch_number = 0
        self._cohort = 0
        self._uploads: dict[int, Upload] = {}
        self._uploads_total = 0
        self._fragments: deque[tuple[Upload, Fragment]] = deque()
        self._fragments_sent = 0
        self.waiting_bytes = 0
        """Bytes of the transactions that are queued and not sent."""
        self.turns_away = False
        """Clients may hand in nothing more; what they have handed in is still decided."""
        self.log_full = ""
        """Why the log has no space; empty: it has some, as far as is known."""

    def submit(self, submission: Submission) -> None:
        """Queues a submission."""
        submission.release = self._held.hold_all(each.snapshot for each in submission.transactions)
        count = len(submission.transactions)
        self._waiting.extend((submission, index) for index in range(count) or (-1,))
        self.waiting_bytes += sum(map(bytes_of, submission.transactions))

    def control(self, control: Control) -> None:
        """Queues a control record; it goes out with the next batch. Of several reports only the
        newest is kept.
        """
        if isinstance(control, MemberReport):
            self._controls = [each for each in self._controls if not isinstance(each, MemberReport)]
        self._controls.append(control)

    def begin_upload(self, changed: Callable[[], None]) -> Upload:
        """Returns an upload with a number for a large transaction; `end_upload` has to follow."""
        self._uploads_total += 1
        upload = self._uploads[self._uploads_total] = Upload(self._uploads_total, changed)
        return upload

    def fragment(self, upload: Upload, index: int, data: bytes) -> None:
        """Queues a piece of a large transaction."""
        upload.undelivered += 1
        self._fragments.append((upload, Fragment(upload.number, index, data)))

    def end_upload(self, upload: Upload, *, submitted: bool) -> None:
        """Ends an upload. Unless its transaction was `submitted`, queues an Abandonment behind its
        fragments, so that the group drops those in the log; fragments that are not sent yet stay
        out.
        """
        if self._uploads.pop(upload.number, None) and not submitted:
            self._fragments = deque(each for each in self._fragments if each[0] is not upload)
            self.control(Abandonment(upload.number))

    def turn_away(self) -> None:
        """Refuses new submissions of clients, before this member leaves."""
        self.turns_away = True
        self.refuse_uploads()

    def note_log_full(self, cause: str) -> list[Submission]:
        """Notes why the log has no space, empty if it has some. Returns the submissions that are
        withdrawn for it: those of which nothing was sent. What was sent may be in the log all the
        same, by an attempt that had no answer, so it is sent on until it is read back.
        """
        if cause and not self.log_full:
            self.refuse_uploads()
        self.log_full = cause
        if not cause or not self._waiting:
            return []
        sent = {submission for each in self._sent.values() for submission, _ in each.parts}
        waiting, self._waiting = self._waiting, deque()
        withdrawn: dict[Submission, None] = {}
        for part in waiting:
            if part[0] in sent or not part[0].is_untouched:
                self._waiting.append(part)
            else:
                withdrawn[part[0]] = None
        self.waiting_bytes = _bytes_of_all(self._waiting)
        for submission in withdrawn:
            submission.is_withdrawn = True
        return list(withdrawn)

    def refuse_uploads(self) -> None:
        """Marks all uploads as refused, and informs them."""
        for upload in list(self._uploads.values()):
            upload.is_refused = True
            upload.changed()

    def next_batch(
        self, *, lingered: bool = True, credit: int = UNLIMITED, is_taken: bool = False
    ) -> LogBatch | None:
        """Returns the next batch to send now, or None where it is better to wait.

        Args:
            lingered: What waits has waited for `linger_ms`, and shall not any longer.
            credit: Transactions that may be sent; control records need none.
            is_taken: The log has acknowledged all that was sent. If that is not read back, reading
                is late; control records go all the same, or the others would miss this member.
        """
        may_go = self._may_go(lingered, credit)
        if not may_go and not (is_taken and self._controls):
            return self._next_fragment() if credit else None
        parts = self._take(credit) if may_go else []
        controls, self._controls = self._controls, []
        self._batch_number += 1
        self._sent[self._batch_number] = _Sent(parts, controls)
        transactions = [submission.transactions[index] for submission, index in parts if index >= 0]
        return LogBatch(self._member, self._incarnation, self._batch_number, transactions, controls)

    def note_encoded(self, batch_number: int, encoded: bytes) -> None:
        """Notes the message that a batch is sent as; call it before the next `next_batch`."""
        self._sent[batch_number].encoded = encoded

    def wrote(self, batch: Message) -> bool:
        """Returns whether a message under this run's incarnation is its own: this run sent it, byte
        for byte, or may have sent it and keeps it no longer.
        """
        sent = self._sent.get(batch.batch_number)
        if sent is None:
            return batch.batch_number <= self._batch_number
        return sent.encoded == batch.encoded

    def read_back(self, batch_number: int) -> list[Part]:
        """Returns the parts of a batch that was read from the log, and queues those of batches it
        overtook again.

        Returns none if no caller waits for it any more: it was read before, was overtaken, or was
        given up.
        """
        overtaken = [number for number in self._sent if number < batch_number]
        for number in reversed(overtaken):
            sent = self._sent.pop(number)
            self._waiting.extendleft(reversed(sent.parts))
            self.waiting_bytes += _bytes_of_all(sent.parts)
            self._controls[:0] = sent.controls
            if sent.fragment:
                self._fragments_sent -= 1
                if sent.fragment[0].number in self._uploads:
                    self._fragments.appendleft(sent.fragment)
        sent = self._sent.pop(batch_number, _Sent([]))
        if sent.fragment:
            self._fragments_sent -= 1
            upload, _ = sent.fragment
            upload.undelivered -= 1
            upload.changed()
        else:
            self._cohort = len(sent.parts) + len(self._waiting)
        return sent.parts

    @property
    def lingers(self) -> bool:
        """True if the next batch is held back by `linger_ms` alone."""
        return bool(self._waiting) and not self._batches_sent

    @property
    def waiting(self) -> int:
        """Transactions and marks that are queued and not sent."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Transactions and marks that are sent and not read back."""
        return sum(len(sent.parts) for sent in self._sent.values())

    @property
    def undecided(self) -> int:
        """Transactions and marks that were handed in and not read back."""
        return len(self._waiting) + self.in_flight

    def holds(self, transaction_id: bytes) -> bool:
        """Returns whether a transaction was handed in and is not read back. Cost: O(undecided)."""
        parts = chain(self._waiting, *(sent.parts for sent in self._sent.values()))
        return any(
            index >= 0 and submission.transactions[index].transaction_id == transaction_id
            for submission, index in parts
        )

    def abandon(self) -> list[Submission]:
        """Gives up, and returns every submission that is not decided, each once, in order."""
        parts = [part for sent in self._sent.values() for part in sent.parts] + list(self._waiting)
        self._sent.clear()
        self._waiting.clear()
        self._fragments.clear()
        self.waiting_bytes = self._fragments_sent = 0
        self.refuse_uploads()
        return list(dict.fromkeys(submission for submission, _ in parts))

    @property
    def _batches_sent(self) -> int:
        """Counts the batches on their way, without fragments, which hold nothing up."""
        return len(self._sent) - self._fragments_sent

    def _may_go(self, lingered: bool, credit: int) -> bool:
        """Returns whether a batch of transactions and control records goes now."""
        waiting, least = len(self._waiting), 1
        if self._batches_sent:  # A small message costs all members what a large one does.
            least = min(max(waiting, 1), self._limits.transactions_min)
        has_credit = credit >= least
        if not (waiting and (has_credit or self._waiting[0][1] < 0)) and not self._controls:
            return False
        if self._controls or waiting >= self._limits.transactions_min:
            return self._batches_sent < self._limits.window
        return not self._batches_sent and (lingered or not 0 < waiting < self._cohort)

    def _next_fragment(self) -> LogBatch | None:
        """Returns a fragment, if one waits and few enough are on their way."""
        if not self._fragments or self._fragments_sent >= self._limits.fragments_window:
            return None
        upload, fragment = self._fragments.popleft()
        self._batch_number += 1
        self._fragments_sent += 1
        self._sent[self._batch_number] = _Sent([], (), (upload, fragment))
        return LogBatch(self._member, self._incarnation, self._batch_number, (), (), (fragment,))

    def _take(self, credit: int) -> list[Part]:
        """Takes as many queued parts, in order, as fit a message and the credit; at least one part
        of any size.
        """
        parts: list[Part] = []
        taken_bytes = 0
        while self._waiting and len(parts) < self._limits.transactions_max:
            submission, index = self._waiting[0]
            if index >= 0:
                if not credit:
                    break
                credit -= 1
                size = bytes_of(submission.transactions[index])
                if parts and taken_bytes + size > self._limits.bytes_max:
                    break
                taken_bytes += size
            parts.append(self._waiting.popleft())
        self.waiting_bytes -= taken_bytes
        return parts


def _bytes_of_all(parts: Iterable[Part]) -> int:
    return sum(
        bytes_of(submission.transactions[index]) for submission, index in parts if index >= 0
    )


def locked_since(parts: Sequence[Part], transactions: int) -> Iterable[int]:
    """Yields for each transaction of a batch the version that was visible here when its commit was
    asked for; 0 for one that no client here has asked for, or waits for any longer.
    """
    locked = [submission.locked_since for submission, index in parts if index >= 0]
    return locked or repeat(0, transactions)
