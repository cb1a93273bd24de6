"""Follows clients' transactions at a member from the call to the answer."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from ...certifier.errors import LogFull
from ..binary_log.log import BinaryLog
from ..core.admission import check_admitted, why_not
from ..core.effects import Delivered
from ..core.log_records import LoggedTransaction
from ..core.member import Member
from ..core.publisher import Submission
from ..core.states import MemberState
from .sender import Sender
from .stage_times import StageTimes
from .waiters import Waiters


class Submissions:
    """All submissions of one run, and the time that they spend in each stage."""

    def __init__(self, member: Member, sender: Sender, waiters: Waiters) -> None:
        self.stages = StageTimes()
        self.binary_log: BinaryLog | None = None
        self._member = member
        self._sender = sender
        self._waiters = waiters

    def submit(self, transactions: Sequence[LoggedTransaction]) -> "asyncio.Future[Submission]":
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

        submission = Submission(transactions, done)
        submission.taken_seconds = time.perf_counter()
        if self.binary_log:
            submission.locked_since = self.binary_log.end_statement()
        self._member.publisher.submit(submission)
        self._sender.schedule()
        return future

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
            self._waiters.visible.wait(versions[-1], applied)

    def _applied(self, version: int, transactions: int, read_us: int) -> None:
        if self._waiters.visible.version >= version:  # Else the run has ended.
            spent_us = max(time.time_ns() // 1000 - read_us, 0)
            self.stages.applied.add(spent_us / 1e6, transactions)

    def _decided(self, submission: Submission) -> None:
        """Answers a decided submission once its certified transactions are visible here."""
        decided = time.perf_counter()
        sent = self._sender.sent_at(submission.batch_number) or decided
        self.stages.add("queued", max(sent - submission.taken_seconds, 0.0))
        self.stages.add("ordered", decided - sent)

        def visible() -> None:
            now = time.perf_counter()
            self.stages.add("committed", now - decided)
            self.stages.end(submission.outcomes, now - submission.taken_seconds)
            submission.end()

        self._waiters.visible.wait(submission.version, visible)

    def end_all(self) -> None:
        """Ends every wait. The outcome of an undecided submission is not known here; a decided one
        is answered before its rows are visible, unless the member is FENCED.
        """
        for submission in self._member.publisher.abandon():
            submission.end()
        self._waiters.end()
