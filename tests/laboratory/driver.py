"""Runs the workloads against real servers: one thread and one session for each process.

The rule it keeps: a client goes on whatever happens to servers, and what it was told is recorded as
it was told.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from tests.integration.waiting import SECONDS_MAX
from tests.laboratory.at_work import AtWork
from tests.laboratory.history import Fault, History, Operation, Outcome, Workload
from tests.laboratory.plans import ALL_WORKLOADS, Process
from tests.laboratory.transactions import Answer, Request, Running

CLIENTS = 6
PAUSE_MS = 5
UNAVAILABLE_PAUSE_MS = 100


class Session(Protocol):
    """Where the requests of a process go."""

    def answer(self, request: Request) -> Answer:
        """Does what is asked for, and waits for it."""
        ...

    def close(self) -> None:
        """Hangs up."""
        ...


OpenSession = Callable[[int, random.Random], Session]
"""Makes the session of a process, by its number, with the dice that are thrown for it."""


def drive(running: Running, answer: Callable[[Request], Answer]) -> Operation:
    """Runs a transaction to its end, one request after the other."""
    request = next(running)
    while True:
        try:
            request = running.send(answer(request))
        except StopIteration as ended:
            operation = ended.value
            assert isinstance(operation, Operation)
            return operation


class WorkloadRun(AtWork):
    """Clients at work from the beginning of the block to its end; then there is a history."""

    def __init__(
        self,
        open_session: OpenSession,
        *,
        seed: int,
        workloads: Sequence[Workload] = ALL_WORKLOADS,
        clients: int = CLIENTS,
        pause_ms: int = PAUSE_MS,
    ) -> None:
        """Nothing runs yet.

        Args:
            workloads: On servers that have had a run before, with a run's name of their own.
            pause_ms: A client's mean pause between two transactions.
        """
        super().__init__(clients)
        self.history = History(seed=seed, workloads=workloads)
        self._open_session = open_session
        self._pause_ms = pause_ms
        self._began = time.monotonic()
        self._acknowledged: list[Counter[str]] = [Counter() for _ in range(clients)]

    @property
    def acknowledged(self) -> int:
        """Transactions that clients were told are committed, so far."""
        return sum(map(Counter.total, self._acknowledged))

    def outcomes(self, outcome: Outcome) -> int:
        """Transactions that ended in this way so far."""
        return sum(each.outcome is outcome for each in tuple(self.history.operations))

    def wait_for_commits(
        self, commits: int, member: str = "", seconds_max: float = SECONDS_MAX
    ) -> None:
        """Returns when so many more transactions were acknowledged, of a member or at all."""

        def counted() -> int:
            return sum(each[member] if member else each.total() for each in self._acknowledged)

        self.wait_for_more(f"commits {member}".rstrip(), commits, counted, seconds_max)

    def note_fault(self, what: str) -> None:
        """Remembers what is done to the servers now."""
        self.history.faults.append(Fault(self._now_ms(), what))

    def _now_ms(self) -> int:
        return int((time.monotonic() - self._began) * 1000)

    def work(self, number: int) -> None:
        """Runs the transactions of a process."""
        dice = random.Random(f"{self.history.seed}/{number}")
        workloads = self.history.workloads
        process = Process(number, workloads, dice, self._now_ms, sends_writes=True)
        session = self._open_session(number, dice)
        try:
            while not self.stopped.is_set():
                operation = drive(process.transaction(), session.answer)
                self.history.operations.append(operation)
                self._acknowledged[number][operation.member] += operation.is_committed
                is_unavailable = operation.outcome is Outcome.UNAVAILABLE
                pause_ms = UNAVAILABLE_PAUSE_MS if is_unavailable else self._pause_ms
                self.stopped.wait(dice.uniform(0, 2 * pause_ms) / 1000)
        finally:
            session.close()
