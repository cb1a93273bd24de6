"""Members as the processes of a run have them: sessions over gRPC, and what each has in the end.

The rule it keeps: only an outcome that is certain is called one; all else is unknown.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

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
from groupcert.members.demo import group_checks as demo_checks
from tests.laboratory.history import Conflict, FinalState, History, Outcome
from tests.laboratory.transactions import (
    Answer,
    Begin,
    Commit,
    Decision,
    Found,
    Get,
    Opened,
    Put,
    Request,
)

TIMEOUT_MS = 20_000
OUTCOMES_MAX = 500
"""Transactions that every member is asked for in the end: those that were not acknowledged."""
MOVES = 0.02
"""How often a client goes on at another member, with the state that it has seen so far."""

Connect = Callable[[Sequence[str]], Client]
"""Makes a client of members that are asked in this order."""


def connect_plainly(addresses: Sequence[str]) -> Client:
    """Makes a client that needs no more than addresses."""
    return Client(addresses, timeout_ms=TIMEOUT_MS)


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group: `host:port` of each by its name, and how clients connect, with
    certificates, say. A connection draws one of the levels; that of the latest state is BEFORE.
    Those `without_history` keep no certification log.
    """

    addresses: Mapping[str, str]
    connect: Connect = connect_plainly
    levels: Sequence[Consistency] = (Consistency.EVENTUAL,)
    without_history: Collection[str] = ()

    def session(self, _number: int, dice: random.Random) -> "GroupSession":
        """Connects a process."""
        return GroupSession(self, dice)

    def finals(self, history: History) -> list[FinalState]:
        """What each member has once it has all that was ordered before.

        Raises:
            NotServing: One does not get there in time.
        """
        asked = [
            operation.transaction_id
            for operation in history.operations
            if operation.has_writes and operation.transaction_id and not operation.is_committed
        ]
        observers = [self.connect([address]) for address in self.addresses.values()]
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
                    applied=()
                    if name in self.without_history
                    else tuple(demo_checks.applied_history(observer)),
                    outcomes=_outcomes(observer, asked[-OUTCOMES_MAX:]),
                )
                for name, observer, status in zip(self.addresses, observers, statuses, strict=True)
            ]
        finally:
            for observer in observers:
                observer.close()


class GroupSession:
    """Answers the requests of one process by asking members, waiting for each answer."""

    def __init__(self, members: Members, dice: random.Random) -> None:
        self._members = members
        self._names = {address: name for name, address in members.addresses.items()}
        self._dice = dice
        self._transaction: Transaction
        self._connect()

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
                case Put(key=key, value=None):
                    self._transaction.delete(key)
                case Put(key=key, value=bytes(value)):
                    self._transaction.put(key, value)
                case Commit():
                    self._transaction.commit()
                    version, gtid = self._transaction.version, self._transaction.gtid
                    return Decision(Outcome.COMMITTED, version, gtid=gtid)
        except (GroupcertError, MemberFailed, TransactionFailed) as failure:
            if isinstance(request, Get | Put):
                self._transaction.rollback()
            return failed(failure, is_commit=isinstance(request, Commit))
        return Found({})

    def _begin(self, begin: Begin) -> Opened:
        if self._dice.random() < MOVES:
            self._client.close()
            self._connect()
        client = self._client
        client.version = begin.version_min
        client.serializable = begin.serializable
        client.consistency = Consistency.BEFORE if begin.latest else self._level
        self._transaction = client.transaction()
        return Opened(
            self._names[client.address],
            self._transaction.snapshot_version,
            self._transaction.transaction_id,
        )

    def _connect(self) -> None:
        order = self._dice.sample(list(self._names), len(self._names))
        self._level = self._dice.choice(self._members.levels)
        self._client = self._members.connect(order)


def failed(failure: Exception, *, is_commit: bool) -> Decision:
    """What a client's error says of its transaction."""
    outcome, conflict = Outcome.UNAVAILABLE, None
    match failure:
        case CertificationConflict() as lost:
            outcome = Outcome.CONFLICT
            winner = (lost.winner_gtid, lost.winner_version, lost.winner_member)
            conflict = Conflict(lost.item, *winner, lost.winner_log_sequence, lost.log_sequence)
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
    cause = f"{type(failure).__name__}: {failure}"
    return Decision(outcome, cause=cause, conflict=conflict)


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
