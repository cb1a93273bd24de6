"""A bank's clients: transfers from snapshots that may be old by then, retries, and audits.

The rule it keeps: a client believes what the protocol lets it believe. After an unknown outcome it
asks again with the same id, and takes "conflict" for an answer only where it is not `Doubtful`: no
member can have forgotten that the first attempt passed.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from groupcert.certifier.errors import SnapshotExpired
from groupcert.certifier.outcomes import Doubtful
from groupcert.certifier.records import Outcome, Verdict
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.core.publisher import Submission
from groupcert.members.wire.requests import RequestLimits, submitted_commit
from groupcert.v1 import store_pb2, transaction_pb2
from tests.sim.checkers import ACCOUNTS, OPENING_BALANCE, Checks
from tests.sim.member import SimulatedMember

LIMITS = RequestLimits(write_set_items_max=100, transaction_bytes_max=10_000)
Members = Callable[[], Sequence[SimulatedMember]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A commit that a client wants an answer for. `everywhere`: consistency AFTER."""

    transaction_id: bytes
    logged: LoggedTransaction
    everywhere: bool


class Client:
    """One session; it moves to another member whenever it begins anew."""

    def __init__(self, number: int, dice: random.Random, online: Members, checks: Checks) -> None:
        self.is_finishing = False
        self._number = number
        self._dice = dice
        self._online = online
        self._checks = checks
        self._transfers = 0
        self._next: Callable[[], None] | None = self._begin
        self._member: SimulatedMember
        self._snapshot_id = 0
        self._version_min = 0
        self._transfer: Transfer
        self._attempts = 0

    @property
    def is_done(self) -> bool:
        """Whether it waits for nothing and will not go on."""
        return self.is_finishing and self._next == self._begin

    def act(self) -> None:
        """Does the next thing, unless it waits for an answer."""
        if self._next is not None and not self.is_done:
            self._next()

    def _begin(self) -> None:
        """Opens a snapshot at some member; for every fifth one, only of what is newest by now."""
        members = self._online()
        if not members:
            return
        self._member = self._dice.choice(members)
        self._version_min = 0
        if self._dice.random() < 0.8:
            self._open_snapshot()
            return
        self._version_min = self._checks.acknowledged_version
        self._next = None
        self._member.submit((), self._marked)

    def _marked(self, ended: Submission | None) -> None:
        self._next = self._begin
        if ended is not None:
            self._open_snapshot()

    def _open_snapshot(self) -> None:
        self._snapshot_id = self._member.open_snapshot()
        self._next = self._use_snapshot

    def _use_snapshot(self) -> None:
        """Waits, so that the snapshot ages; then transfers or audits."""
        choice = self._dice.random()
        if not self._member.is_online or self.is_finishing:
            self._next = self._begin
        elif choice < 0.6:
            try:
                self._transfer_some() if choice < 0.5 else self._audit()
            except SnapshotExpired:
                self._next = self._begin

    def _audit(self) -> None:
        rows = self._member.snapshots.rows(self._snapshot_id, self._member.now_ms())
        balances = {key: rows.get(key) for key in ACCOUNTS}
        self._checks.read(balances, rows.version, self._version_min)
        self._member.snapshots.close(self._snapshot_id)
        self._next = self._begin

    def _transfer_some(self) -> None:
        """Moves money between two accounts, by the balance of a third that nobody may change."""
        dice = self._dice
        rows = self._member.snapshots.rows(self._snapshot_id, self._member.now_ms())
        source, target, third = dice.sample(ACCOUNTS, 3)
        reads = {key: rows.get(key) for key in (source, target, third)[: dice.choice((2, 3))]}
        source_balance, target_balance, *others = (
            int(value or OPENING_BALANCE) for value in reads.values()
        )
        amount = dice.randint(1, 9) + sum(others) % 10
        changes = transaction_pb2.Changes(
            put_keys=[source, target],
            put_values=[b"%d" % (source_balance - amount), b"%d" % (target_balance + amount)],
        )
        note = b"note/%d" % self._number
        if dice.random() < 0.2:
            changes.delete_keys.append(note)
        elif dice.random() < 0.2:
            changes.put_keys.append(note)
            changes.put_values.append(b"%d" % amount)
        self._transfers += 1
        transaction_id = b"%d-%d" % (self._number, self._transfers)
        request = store_pb2.CommitRequest(
            transaction_id=transaction_id, changes=changes, read_keys=[third] if others else ()
        )
        everywhere = dice.random() < 0.1
        logged = submitted_commit(request, rows.version, LIMITS, report=everywhere)
        self._member.snapshots.close(self._snapshot_id)
        self._checks.started(transaction_id, reads, logged.payload)
        self._transfer = Transfer(
            transaction_id=transaction_id,
            logged=logged,
            everywhere=everywhere,
        )
        self._attempts = 0
        self._submit()

    def _submit(self) -> None:
        self._attempts += 1
        self._next = None
        transfer, dice = self._transfer, self._dice
        if dice.random() < 0.7:
            self._member.submit((transfer.logged,), self._answered, everywhere=transfer.everywhere)
            return
        hang_up = self._member.submit_large(
            transfer.logged,
            self._answered,
            everywhere=transfer.everywhere,
            patient=dice.random() < 0.9,
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
        outcome = ended.outcomes[0] if ended else None
        if outcome is None or outcome.verdict is Verdict.REFUSED:
            self._next = self._submit_again
            return
        self._next = self._begin
        if outcome.verdict is Verdict.CERTIFIED:
            self._acknowledged(outcome)
        elif self._attempts == 1 or not isinstance(outcome, Doubtful):
            self._checks.abort(self._transfer.transaction_id)

    def _acknowledged(self, outcome: Outcome) -> None:
        view = self._member.machine.view
        everywhere = [
            member
            for member in self._online()
            if self._transfer.everywhere and view.member(member.machine.me.incarnation)
        ]
        self._checks.acknowledge(self._transfer.transaction_id, outcome, everywhere)
