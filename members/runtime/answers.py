"""Answers to those who wait at a member: for a decision, for a version to be visible, for news.

The rule it keeps: no call waits for what does not come. The end of a run wakes all calls, and later
ones do not wait. Versions become visible in order, so whoever waits for one that is passed is
called at once (`CommitClock`).
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Protocol

from ...certifier.errors import LogFull, NotServing
from ...certifier.records import Outcome, Verdict
from ..binary_log.stored_log import BinaryLog
from ..core.admission import check_admitted, why_not
from ..core.effects import Delivered
from ..core.log_records import LoggedTransaction
from ..core.member import Member
from ..core.publisher import Submission
from ..core.repetitions import passes_again
from ..core.views import MemberState
from ..errors.transactions import OutcomeUnknown
from ..host.histogram import Histogram

STAGES = ("queued", "ordered", "committed")
"""Taken but not sent; sent but not read back; read back but not visible yet."""
_OVER = (MemberState.ERROR, MemberState.FENCED, MemberState.LEFT)


class Sends(Protocol):
    """A driver, as `Answers` uses it."""

    def send(self) -> None:
        """Sends what the member wants in the log."""

    def sent_at(self, batch_number: int) -> float | None:
        """Returns the time, by `time.perf_counter`, at which one of the last batches was sent."""

    def begins_to_wait(self) -> None:
        """Has the next message read at once: a call waits for a version."""


class StageTimes:
    """Seconds since the start of the run: of submissions in each stage, and of transactions from
    the call to the answer by verdict; and of every member's transactions, `applied`, from the time
    that they are read from the log until they are visible here.
    """

    __slots__ = ("applied", "stages", "verdicts")

    def __init__(self) -> None:
        self.stages = {stage: Histogram() for stage in STAGES}
        self.verdicts = {verdict: Histogram() for verdict in Verdict}
        self.applied = Histogram()

    def add(self, stage: str, seconds: float) -> None:
        """Counts one submission's time in a stage."""
        self.stages[stage].add(seconds)

    def end(self, outcomes: Iterable[Outcome | None], seconds: float) -> None:
        """Counts the time that a submission took as that of each of its transactions."""
        for outcome in outcomes:
            assert outcome is not None, "a submission ended undecided"
            self.verdicts[outcome.verdict].add(seconds)


class CommitClock:
    """A version that goes forward, and the callbacks to call when it reaches theirs."""

    __slots__ = ("_numbers", "_waiting", "version")

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def wait(self, version: int, done: Callable[[], None]) -> None:
        """Calls `done` once the clock is at `version`, at once if it is there; calls those of one
        version in the order they were given. Cost: O(log waiting).
        """
        if version <= self.version:
            done()
        else:
            heapq.heappush(self._waiting, (version, next(self._numbers), done))

    def advance(self, version: int) -> None:
        """Moves the clock to `version`, if that is forward."""
        if version > self.version:
            self.version = version
            while self._waiting and self._waiting[0][0] <= version:
                heapq.heappop(self._waiting)[2]()

    def end(self) -> None:
        """Calls every callback; callers look at `version` to see whether it got there."""
        waiting, self._waiting = sorted(self._waiting), []
        for _, _, done in waiting:
            done()

    def __len__(self) -> int:
        return len(self._waiting)


class Answers:
    """All calls that wait at one member's run, and the time that submissions spend in each stage;
    for the thread of its driver.
    """

    def __init__(self, member: Member, driver: Sends, binary_log: BinaryLog | None) -> None:
        self.stages = StageTimes()
        self.visible = CommitClock()
        self.everywhere = CommitClock()
        self.waiting = 0
        """Calls that wait for a version."""
        self._member = member
        self._driver = driver
        self._binary_log = binary_log
        self._news: asyncio.Future[None] | None = None

    def submit(
        self,
        transactions: Sequence[LoggedTransaction],
        decided: Callable[[Submission], None] | None = None,
    ) -> "asyncio.Future[Submission]":
        """Submits transactions, see `MemberRuntime.submit`."""
        check_admitted(self._member, transactions)
        future: asyncio.Future[Submission] = asyncio.get_running_loop().create_future()

        def done(ended: Submission) -> None:
            if future.done():
                return
            if ended.is_withdrawn:
                future.set_exception(LogFull(cause=self._member.publisher.log_full))
            elif not ended.log_sequence or self._member.state is MemberState.FENCED:
                future.set_exception(why_not(self._member))
            else:
                future.set_result(ended)

        self.hand_in(Submission(transactions, done, decided))
        return future

    def hand_in(self, submission: Submission) -> None:
        """Has a submission ordered; it ends once it is decided and visible here, or never will."""
        submission.taken_seconds = time.perf_counter()
        if self._binary_log:
            submission.locked_since = self._binary_log.end_statement()
        self._member.publisher.submit(submission)
        self._driver.send()

    def delivered(self, delivered: Delivered) -> None:
        """Answers the submissions that messages have decided, and notes when all that was certified
        in the messages is visible here.
        """
        for submission in delivered.ended:
            self._decided(submission)
        for submission in delivered.turned_away:
            submission.end()
        versions = delivered.entries.versions
        if versions:
            applied = partial(self._applied, versions[-1], len(versions), delivered.decided_us)
            self.visible.wait(versions[-1], applied)

    def end_all(self) -> None:
        """Ends every wait. The outcome of an undecided submission is not known here; a decided one
        is answered before its rows are visible, unless the member is FENCED.
        """
        for submission in self._member.publisher.abandon():
            submission.end()
        self.visible.end()
        self.everywhere.end()

    async def reached(self, clock: CommitClock, version: int) -> None:
        """Waits until a clock is at `version`.

        Raises:
            NotServing: It is not, and the member's run is over, or ended meanwhile.
        """
        if clock.version < version and self._member.state not in _OVER:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            clock.wait(version, lambda: _wake(future))
            self.waiting += 1
            self._driver.begins_to_wait()
            try:
                await future
            finally:
                self.waiting -= 1
        if clock.version < version:
            raise NotServing(member=self._member.me.name, state=self._member.state.name)

    async def news(self, timeout_s: float) -> None:
        """Waits until something is committed here or the member closes, at most for the time."""
        self._news = self._news or asyncio.get_running_loop().create_future()
        await asyncio.wait((self._news,), timeout=timeout_s)

    def tell_news(self) -> None:
        """Wakes those who wait for news."""
        if self._news is not None:
            self._news.set_result(None)
            self._news = None

    def _applied(self, version: int, transactions: int, read_us: int) -> None:
        if self.visible.version >= version:  # Else the run has ended.
            spent_us = max(time.time_ns() // 1000 - read_us, 0)
            self.stages.applied.add(spent_us / 1e6, transactions)

    def _decided(self, submission: Submission) -> None:
        """Answers a decided submission once its certified transactions are visible here."""
        decided = time.perf_counter()
        sent = self._driver.sent_at(submission.batch_number) or decided
        self.stages.add("queued", max(sent - submission.taken_seconds, 0.0))
        self.stages.add("ordered", decided - sent)
        if submission.decided:
            submission.decided(submission)

        def visible() -> None:
            now = time.perf_counter()
            self.stages.add("committed", now - decided)
            self.stages.end(submission.outcomes, now - submission.taken_seconds)
            submission.end()

        self.visible.wait(submission.version, visible)


class KnownOutcomes:
    """The outcomes that one run's member remembers of clients' transactions, by their ids.

    It reads the table of outcomes where it stands: a run that loads its state has another one.
    """

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


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
