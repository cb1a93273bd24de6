"""Runs the workloads against real members: one thread and one client for each process.

The rule it keeps: a client goes on whatever happens to members, and what it was told is recorded as
it was told. Only an outcome that is certain is called one; all else is unknown.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from groupcert import (
    CertificationConflict,
    Client,
    Consistency,
    MemberFailed,
    OutcomeUnknown,
    Transaction,
    TransactionFailed,
    TransactionRefused,
    TransactionTooOld,
)
from groupcert.certifier.errors import GroupcertError, InvalidRequest
from groupcert.members.client.remote import is_refusal
from groupcert.members.demo import checks as demo_checks
from tests.laboratory.history import Fault, FinalState, History, Operation, Outcome, Workload
from tests.laboratory.plans import ALL_WORKLOADS, Process
from tests.laboratory.transactions import (
    Answer,
    Begin,
    Commit,
    Decision,
    Found,
    Get,
    Opened,
    Request,
    Running,
)

CLIENTS = 6
TIMEOUT_MS = 20_000
PAUSE_MS = 5
UNAVAILABLE_PAUSE_MS = 100
OUTCOMES_MAX = 500
"""Transactions that every member is asked for in the end: those that were not acknowledged."""
MOVES = 0.02
"""How often a client goes on at another member, with the state that it has seen so far."""

Connect = Callable[[Sequence[str]], Client]
"""Makes a client of members that are asked in this order."""


class GroupSession:
    """Answers the requests of one process by asking members, waiting for each answer."""

    def __init__(self, addresses: Mapping[str, str], dice: random.Random, connect: Connect) -> None:
        self._members = {address: name for name, address in addresses.items()}
        self._dice = dice
        self._connect = connect
        self._client = connect(self._some_order())
        self._transaction: Transaction

    def close(self) -> None:
        """Hangs up."""
        self._client.close()

    def answer(self, request: Request) -> Answer:
        """Asks a member, and says what came of it."""
        try:
            match request:
                case Begin():
                    return self._begin(request)
                case Get(keys=keys):
                    return Found(self._transaction.get_many(keys))
                case Commit():
                    return self._commit(request)
        except (GroupcertError, MemberFailed, TransactionFailed) as failure:
            if isinstance(request, Get):
                self._transaction.rollback()
            return failed(failure, is_commit=isinstance(request, Commit))

    def _begin(self, begin: Begin) -> Opened:
        if self._dice.random() < MOVES:
            self._client.close()
            self._client = self._connect(self._some_order())
        client = self._client
        client.version = begin.version_min
        client.serializable = begin.serializable
        client.consistency = Consistency.BEFORE if begin.latest else Consistency.EVENTUAL
        self._transaction = client.transaction()
        return Opened(
            self._members[client.address],
            self._transaction.snapshot_version,
            self._transaction.transaction_id,
        )

    def _commit(self, commit: Commit) -> Decision:
        transaction = self._transaction
        for key, value in commit.writes.items():
            if value is None:
                transaction.delete(key)
            else:
                transaction.put(key, value)
        transaction.commit()
        return Decision(Outcome.COMMITTED, transaction.version)

    def _some_order(self) -> list[str]:
        return self._dice.sample(list(self._members), len(self._members))


def failed(failure: Exception, *, is_commit: bool) -> Decision:
    """What a client's error says of its transaction."""
    outcome = Outcome.UNAVAILABLE
    match failure:
        case CertificationConflict():
            outcome = Outcome.CONFLICT
        case TransactionTooOld():
            outcome = Outcome.TOO_OLD
        case TransactionRefused() | InvalidRequest():
            outcome = Outcome.REFUSED
        case OutcomeUnknown():
            outcome = Outcome.UNKNOWN
        case MemberFailed() if is_commit and not is_refusal(failure):
            outcome = Outcome.UNKNOWN
        case _:
            pass
    return Decision(outcome, cause=f"{type(failure).__name__}: {failure}")


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


class WorkloadRun:
    """Clients at work from the beginning of the block to its end; then there is a history."""

    def __init__(
        self,
        addresses: Mapping[str, str],
        *,
        seed: int,
        workloads: Sequence[Workload] = ALL_WORKLOADS,
        clients: int = CLIENTS,
        pause_ms: int = PAUSE_MS,
        connect: Connect | None = None,
    ) -> None:
        """Nothing runs yet.

        Args:
            addresses: `host:port` of each member, by its name.
            workloads: On a group that has had a run before, with a run's name of their own.
            pause_ms: A client's mean pause between two transactions.
            connect: Makes clients that need more than addresses, such as certificates.
        """
        self.history = History(seed=seed, workloads=workloads)
        self._addresses = dict(addresses)
        self._clients = clients
        self._pause_ms = pause_ms
        self._connect = connect or _connect
        self._stopped = threading.Event()
        self._began = time.monotonic()
        self._pool = ThreadPoolExecutor(clients)
        self._running: list[Future[None]] = []
        self._acknowledged = [0] * clients

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._running = [self._pool.submit(self._work, number) for number in range(self._clients)]
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._pool.shutdown()
        for running in self._running:
            running.result()

    @property
    def acknowledged(self) -> int:
        """Transactions that clients were told are committed, so far."""
        return sum(self._acknowledged)

    def outcomes(self, outcome: Outcome) -> int:
        """Transactions that ended in this way so far."""
        return sum(each.outcome is outcome for each in tuple(self.history.operations))

    @property
    def is_running(self) -> bool:
        """Whether every client is still at work; the end of the block says why if one is not."""
        return not any(running.done() for running in self._running)

    def note_fault(self, what: str) -> None:
        """Remembers what is done to the group now."""
        self.history.faults.append(Fault(self._now_ms(), what))

    def read_finals(self) -> None:
        """Adds what each member has now that all is healed; after the block."""
        asked = [
            operation.transaction_id
            for operation in self.history.operations
            if operation.has_writes and operation.transaction_id and not operation.is_committed
        ]
        newest = asked[-OUTCOMES_MAX:]
        self.history.finals = final_states(self._addresses, newest, self._connect)

    def _now_ms(self) -> int:
        return int((time.monotonic() - self._began) * 1000)

    def _work(self, number: int) -> None:
        dice = random.Random(f"{self.history.seed}/{number}")
        process = Process(number, self.history.workloads, dice, self._now_ms)
        session = GroupSession(self._addresses, dice, self._connect)
        try:
            while not self._stopped.is_set():
                operation = drive(process.transaction(), session.answer)
                self.history.operations.append(operation)
                self._acknowledged[number] += operation.is_committed
                is_unavailable = operation.outcome is Outcome.UNAVAILABLE
                pause_ms = UNAVAILABLE_PAUSE_MS if is_unavailable else self._pause_ms
                self._stopped.wait(dice.uniform(0, 2 * pause_ms) / 1000)
        finally:
            session.close()


def final_states(
    addresses: Mapping[str, str],
    transaction_ids: Sequence[bytes] = (),
    connect: Connect | None = None,
) -> list[FinalState]:
    """What each member has once it has all that was ordered before.

    Args:
        transaction_ids: Whose outcomes are asked for, of those that no history has if they aborted.

    Raises:
        NotServing: One does not get there in time.
    """
    connect = connect or _connect
    observers = [connect([address]) for address in addresses.values()]
    try:
        for observer in observers:
            observer.consistency = Consistency.BEFORE
            observer.transaction().rollback()
        statuses = demo_checks.settle(observers)
        return [
            FinalState(
                member=name,
                version=status.committed_version,
                digest=status.digest,
                gtid_executed=status.gtid_executed,
                rows=_rows(observer),
                applied=tuple(demo_checks.applied_history(observer)),
                outcomes=_outcomes(observer, transaction_ids),
            )
            for name, observer, status in zip(addresses, observers, statuses, strict=True)
        ]
    finally:
        for observer in observers:
            observer.close()


def _outcomes(observer: Client, transaction_ids: Sequence[bytes]) -> dict[str, tuple[str, str]]:
    """What the member remembers of these transactions; of conflicts why, since its start."""
    found = {}
    for transaction_id in transaction_ids:
        outcome = observer.outcome(transaction_id).outcome
        conflict = outcome.conflict
        if outcome.verdict:
            decided = f"verdict {outcome.verdict}, {outcome.gtid or 'no GTID'}, {outcome.version}"
            place = f"{conflict.log_sequence}.{outcome.log_index}, lost to {conflict.winner_gtid}"
            found[transaction_id.hex()] = (decided, place if conflict.log_sequence else "")
    return found


def _rows(observer: Client) -> dict[bytes, bytes]:
    with observer.transaction() as transaction:
        return dict(transaction.scan())


def _connect(addresses: Sequence[str]) -> Client:
    return Client(addresses, timeout_ms=TIMEOUT_MS)
