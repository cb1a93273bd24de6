"""The laboratory's clients of a simulated group, and what each of its members has in the end.

The rule it keeps: the transactions and their checkers are those that run against real members; this
module takes requests to simulated ones, one at a time, and lets others act while it waits. As the
real client does, it waits while nobody serves, and asks again, under the same id, where it does not
know what became of a commit. It believes what the protocol lets it believe: it takes "conflict" for
an answer to a repetition only where it is not `Doubtful`, as a member may have forgotten that the
first attempt passed.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from groupcert import Client as RealClient
from groupcert.applier.targets.rocksdb import RowsSnapshot, applied_intervals
from groupcert.certifier.errors import SnapshotExpired
from groupcert.certifier.outcomes import Doubtful
from groupcert.certifier.records import Outcome as CertifiedOutcome
from groupcert.certifier.records import Verdict
from groupcert.certifier.storage.store import Family
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.core.noted_decisions import decode
from groupcert.members.core.publisher import Submission
from groupcert.members.demo import group_checks as demo_checks
from groupcert.members.services.group import history_page
from groupcert.members.wire.requests import RequestLimits, submitted_commit
from groupcert.v1 import group_pb2, store_pb2, transaction_pb2
from tests.laboratory.history import FinalState, History, Outcome
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
from tests.sim.checkers import Checks, rows_of
from tests.sim.member import SimulatedMember

OUTCOMES = {
    Verdict.CERTIFIED: Outcome.COMMITTED,
    Verdict.CONFLICT: Outcome.CONFLICT,
    Verdict.TOO_OLD: Outcome.TOO_OLD,
}
GONE = Decision(Outcome.UNAVAILABLE, cause="its member does not serve, or its snapshot has expired")
LIMITS = RequestLimits(write_set_items_max=100, transaction_bytes_max=10_000)
PAUSE = 0.25
"""How often a client lets a turn pass: its snapshot gets older."""
Members = Callable[[], Sequence[SimulatedMember]]


class Client:
    """One process of the workloads; each transaction is at a member that the dice choose."""

    def __init__(
        self,
        number: int,
        dice: random.Random,
        online: Members,
        checks: Checks,
        history: History,
        clock_ms: Callable[[], int],
    ) -> None:
        self.is_finishing = False
        self._number = number
        self._dice = dice
        self._online = online
        self._checks = checks
        self._history = history
        self._process = Process(number, ALL_WORKLOADS, dice, clock_ms)
        self._transactions = 0
        self._running: Running | None = None
        self._next: Callable[[], None] | None = None
        self._request: Request
        self._member: SimulatedMember
        self._snapshot_id = 0
        self._logged: LoggedTransaction
        self._everywhere = False
        """Whether the commit waits for all members: consistency AFTER."""
        self._attempts = 0

    @property
    def is_done(self) -> bool:
        """Whether it waits for nothing and will not go on."""
        return self.is_finishing and self._running is None

    def act(self) -> None:
        """Does the next thing, unless it waits for an answer."""
        if self._running and not self.is_finishing and self._dice.random() < PAUSE:
            return
        if self._running is None and not self.is_finishing:
            self._running = self._process.transaction()
            self._request = next(self._running)
            self._next = self._meet
        if self._next is not None:
            self._next()

    def _meet(self) -> None:
        """Takes the request to a member."""
        match self._request:
            case Begin() as begin:
                self._choose_member(begin)
            case Get(keys=keys):
                rows = self._rows()
                self._send(GONE if rows is None else Found({key: rows.get(key) for key in keys}))
            case Commit() as commit:
                self._commit(commit)

    def _send(self, answer: Answer) -> None:
        """Gives the transaction its answer; what it asks for then is met when it acts again."""
        assert self._running is not None
        self._next = self._meet
        try:
            self._request = self._running.send(answer)
        except StopIteration as ended:
            self._history.operations.append(ended.value)
            self._running = self._next = None

    def _choose_member(self, begin: Begin) -> None:
        members = self._online()
        if members:
            self._member = self._dice.choice(members)
            if begin.latest:
                self._next = None
                self._member.submit((), self._marked)
            else:
                self._open()
        elif self.is_finishing:
            self._send(GONE)

    def _marked(self, ended: Submission | None) -> None:
        """The member has all that was ordered before; or it is gone, and another one is asked."""
        if ended is None:
            self._next = self._meet
        else:
            self._open()

    def _open(self) -> None:
        """Opens a snapshot once it reaches what the session has seen."""
        assert isinstance(self._request, Begin)
        member = self._member
        if not member.is_online:
            self._send(GONE)
        elif member.committed_version < self._request.version_min:
            self._next = self._open
        else:
            self._snapshot_id = member.open_snapshot()
            self._transactions += 1
            transaction_id = b"w%d-%d" % (self._number, self._transactions)
            self._transaction_id = transaction_id
            self._send(Opened(member.name, member.committed_version, transaction_id))

    def _rows(self) -> RowsSnapshot | None:
        """The rows of its snapshot, if that is still there."""
        member = self._member
        if not member.is_online:
            return None
        try:
            return member.snapshots.rows(self._snapshot_id, member.now_ms())
        except SnapshotExpired:
            return None

    def _commit(self, commit: Commit) -> None:
        rows = self._rows()
        if rows is None:
            self._send(GONE)
            return
        self._member.snapshots.close(self._snapshot_id)
        if not commit.writes:
            self._send(Decision(Outcome.COMMITTED, rows.version))
            return
        puts = {key: value for key, value in commit.writes.items() if value is not None}
        changes = transaction_pb2.Changes(
            put_keys=list(puts),
            put_values=list(puts.values()),
            delete_keys=[key for key in commit.writes if key not in puts],
        )
        request = store_pb2.CommitRequest(
            transaction_id=self._transaction_id, changes=changes, read_keys=commit.read_keys
        )
        self._everywhere = self._dice.random() < 0.1
        self._logged = submitted_commit(request, rows.version, LIMITS, report=self._everywhere)
        depends = {**commit.writes, **dict.fromkeys(commit.read_keys)}
        reads = {key: rows.get(key) for key in depends}
        self._checks.started(self._transaction_id, reads, self._logged.payload)
        self._attempts = 0
        self._submit()

    def _submit(self) -> None:
        self._attempts += 1
        self._next = None
        dice, everywhere = self._dice, self._everywhere
        if dice.random() < 0.7:
            self._member.submit((self._logged,), self._answered, everywhere=everywhere)
            return
        patient = dice.random() < 0.9
        hang_up = self._member.submit_large(
            self._logged, self._answered, everywhere=everywhere, patient=patient
        )
        if dice.random() < 0.2:
            self._next = lambda: self._hang_up(hang_up)

    def _hang_up(self, hang_up: Callable[[], None]) -> None:
        """Does not wait for the answer, after a while; the transaction is tried again."""
        if self.is_finishing or self._dice.random() < 0.3:
            hang_up()
            self._next = self._submit_again

    def _submit_again(self) -> None:
        """The same transaction at any member that takes it."""
        members = self._online()
        if members:
            self._member = self._dice.choice(members)
            self._submit()

    def _answered(self, ended: Submission | None) -> None:
        """See `members.client.remote.RemoteMembers.decide`."""
        outcome = ended.outcomes[0] if ended else None
        if outcome is None or outcome.verdict is Verdict.REFUSED:
            self._next = self._submit_again
            return
        answer = Decision(OUTCOMES[outcome.verdict], outcome.version)
        if outcome.verdict is Verdict.CERTIFIED:
            self._acknowledged(outcome)
        elif isinstance(outcome, Doubtful) and self._attempts > 1:
            answer = Decision(Outcome.UNKNOWN, cause="its first attempt may be forgotten")
        else:
            self._checks.abort(self._transaction_id)
        self._send(answer)

    def _acknowledged(self, outcome: CertifiedOutcome) -> None:
        view = self._member.machine.view
        everywhere = [
            member
            for member in self._online()
            if self._everywhere and view.member(member.machine.me.incarnation)
        ]
        self._checks.acknowledge(self._transaction_id, outcome, everywhere)


class _HistoryOfMember:
    """A simulated member where the real client is asked for its history."""

    def __init__(self, member: SimulatedMember) -> None:
        self._member = member

    def history(self) -> Iterator[group_pb2.ReadHistoryResponse]:
        """See `members.client.client.Client.history`."""
        store = self._member.disk.as_store()
        ran = {interval.version: interval for interval in applied_intervals(store)}
        for _, block in store.scan(Family.DECISIONS):
            rows = decode(block, "", "", "history")
            for row in rows:
                if interval := ran.get(row["version"]):
                    row["started_tick"] = interval.started
                    row["committed_tick"] = interval.committed
            yield history_page(rows, 0)


def final_states(members: Sequence[SimulatedMember]) -> list[FinalState]:
    """What each member has, which is at rest."""
    return [
        FinalState(
            member=member.name,
            version=member.committed_version,
            digest=member.machine.certifier.digest().hex(),
            gtid_executed=str(member.machine.certifier.executed()),
            rows=rows_of(member),
            applied=tuple(demo_checks.applied_history(cast(RealClient, _HistoryOfMember(member)))),
        )
        for member in members
        if member.has_rows
    ]
