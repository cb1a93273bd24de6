"""One process of a simulated member: its runs, what ends each of them, and whether another begins.

The rule it keeps: it does what `process/lifecycle.py`, `join.py` and `log_trimmer.py` do, in their
order and by their decisions; the waiting in between is the cluster's. A member that was put out
comes back by itself, one that fenced itself waits for its operator.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.applier.targets.rocksdb import CHECKPOINT_KEY
from groupcert.certifier.errors import (
    CorruptLog,
    Fenced,
    GroupcertError,
    LogGap,
    NotServing,
)
from groupcert.certifier.position import log_sequence_of
from groupcert.certifier.storage.store import Family
from groupcert.members.core import recovery_plan as recovery_choice
from groupcert.members.core.catch_up import CatchUp
from groupcert.members.core.recovery_plan import Candidate
from groupcert.members.core.rejoins import Rejoins
from groupcert.members.core.views import MemberState
from groupcert.members.core.witnesses import Progress, Step, Witnesses
from groupcert.members.errors.membership import OutOfGroup, StillFenced
from groupcert.members.errors.recovery import LogTooLong, LogTrimmed, NoDonor, TooManyCopies
from groupcert.members.process import log_trimmer
from groupcert.members.process.log_trimmer import Retention
from groupcert.members.recovery import copies
from groupcert.members.recovery.joiner import Joiner
from groupcert.members.runtime.state_store import LOG_IDENTITY_KEY
from groupcert.members.settings.member import MemberConfig
from groupcert.members.total_order.port import LogIdentity, LogState, check_reaches
from tests.sim.disk import SimulatedDisk
from tests.sim.member import SimulatedMember
from tests.sim.memory_order import MemoryLog
from tests.sim.recovery import OpenCopy, Recovery

REJOIN_TRIES = 3
REJOIN_MS = 300
JOIN_LAG_MESSAGES = 4
JOIN_LAG_TRANSACTIONS = 6
RETENTION = Retention(messages=15, bytes=1 << 30)
TRIM_MESSAGES_MIN = 5
ENDED = (MemberState.ERROR, MemberState.FENCED, MemberState.LEFT)
"""States of a member whose run is over."""


class Witness(Protocol):
    """Who is told of what happens to a process."""

    def reaches(self, name: str, other: str) -> bool:
        """Whether a member gets an answer from another one."""

    def note(self, event: str) -> None:
        """Something worth a line happened."""

    def fenced_itself(self, name: str, error: GroupcertError) -> None:
        """A member has fenced itself."""

    def trims(self, name: str, first_sequence: int) -> None:
        """The log is to begin at that message."""

    def asks_to_join(self, name: str) -> None:
        """A member holds itself near enough to the log's end."""

    def adopted(self, name: str, joiner: Joiner, donor: str) -> None:
        """A member has a copy in the place of what it had."""


class SimulatedProcess:
    """A process. `member` is its present run; `is_over` once nothing but a start helps."""

    def __init__(
        self,
        config: MemberConfig,
        disk: SimulatedDisk,
        log: MemoryLog,
        begin: Callable[[str], SimulatedMember],
        processes: Callable[[], Iterable["SimulatedProcess"]],
        witness: Witness,
    ) -> None:
        """`begin`: makes a run of the member from what its disk has."""
        self.name = config.member
        self.disk = disk
        self.is_over = False
        self.recovery: Recovery | None = None
        self.copies: dict[str, int] = {}
        self._config = self._configured = config
        self._log = log
        self._make_member = begin
        self._processes = processes
        self._witness = witness
        self._rejoins = Rejoins(REJOIN_TRIES, REJOIN_MS)
        self._has_joined = False
        self._next_run_ms: int | None = None
        self._begin()

    @property
    def _now_ms(self) -> int:
        return self.member.now_ms()

    def read(self, messages_max: int) -> int:
        """Goes on in the log, which answers; returns how many messages were read.

        What it meets there ends its run as it would end the process's.
        """
        if not self._reads:
            return 0
        machine, state = self.member.machine, self._log.state()
        first = machine.log_sequence + 1
        try:
            if self._catch_up is None:
                self._open(state)
            self._check_reaches(state, first)
            deliveries = self._log.portion(first)[:messages_max]
            self.member.read(deliveries)
        except (LogTrimmed, LogTooLong) as needed:
            self._recover(needed)
        except (Fenced, CorruptLog) as error:
            self.fence(error)
        else:
            self._note_state()
            self._join_when_near(state)
            return len(deliveries)
        return 0

    def tick(self) -> None:
        """Time has passed."""
        self.member.tick()
        self._note_state()
        if self._next_run_ms is not None and self._now_ms >= self._next_run_ms:
            self._next_run_ms = None
            self._live_again()

    def recover_on(self) -> None:
        """Does the next thing for a copy of a donor's state, if it needs one."""
        recovery = self.recovery
        if recovery is None:
            return
        try:
            manifest = recovery.step(self._now_ms)
        except NoDonor as error:
            self.recovery = None
            if isinstance(recovery.needed, LogTooLong):
                self._read_log_next()
                self._live_again()
            else:
                self._come_back(str(error))
        except Fenced as error:
            self.recovery = None
            self.fence(error)
        else:
            if manifest is not None:
                self.recovery = None
                self._witness.adopted(self.name, self.joiner(), manifest.member)
                self._read_log_next()
                self._live_again()

    def keep_log(self) -> None:
        """Tells the group what of the log this member needs no more, and trims it."""
        machine = self.member.machine
        if machine.state is not MemberState.ONLINE:
            return
        self.member.save()
        self.member.flush()
        copied = list(self.copies.values())
        machine.durable_log_sequence = log_trimmer.reported_sequence(machine.log_sequence, copied)
        durable = machine.durable_log_sequences()
        target = log_trimmer.trim_target(
            self._log.state(), durable, copied, RETENTION, messages_min=TRIM_MESSAGES_MIN
        )
        if target is not None:
            self._witness.trims(self.name, target)
            self._log.trim(target)

    def fence(self, error: GroupcertError) -> None:
        """See `MemberRuntime.fence`."""
        self._witness.fenced_itself(self.name, error)
        self.member.fence(error)
        self._note_state()

    def stop(self) -> None:
        """Ends the process in good order."""
        self._close()
        self.member.stop()

    def crash(self, batches_kept: int) -> None:
        """Ends it at once."""
        self._close()
        self.member.crash(batches_kept)

    def discard_state(self) -> None:
        """The operator has the fenced member begin anew, with an empty disk."""
        self._close()
        self.member.stop()
        self.disk.wipe()
        self._begin()

    def joiner(self) -> Joiner:
        """See `members.process.lifecycle.joiner_of`."""
        machine = self.member.machine
        checkpoint = self.member.rows.checkpoint() or Checkpoint()
        identity = self.disk.get(Family.META, LOG_IDENTITY_KEY)
        return Joiner(
            group=self._config.group,
            member=self.name,
            data_folder=self.disk.path,
            addresses=self._config.seeds,
            log=None if identity is None else LogIdentity.decode(identity),
            log_sequence=max(machine.log_sequence, log_sequence_of(max(checkpoint.position, 0))),
            gtid_executed=checkpoint.gtid_executed,
            without_rows=not self.member.has_rows,
        )

    def candidate(self) -> Candidate:
        """See `Donor`."""
        machine = self.member.machine
        return Candidate(
            name=self.name,
            address=machine.me.address,
            state=machine.state.name,
            certified_version=machine.certifier.window.newest_version,
            committed_version=self.member.committed_version,
            without_rows=not self.member.has_rows,
        )

    def progress(self) -> Progress:
        """How far it has read, for one that joins; see `members.wire.peer_status.ask_progress`."""
        machine = self.member.machine
        identity = self.disk.get(Family.META, LOG_IDENTITY_KEY)
        log = "" if identity is None else str(LogIdentity.decode(identity))
        digest = machine.digests.find(machine.log_sequence)
        group, vouches = self._config.group, self._vouches
        return Progress(self.name, group, log, machine.log_sequence, digest, vouches)

    def open_copy(self, asker: str, *, without_rows: bool) -> OpenCopy:
        """See `Donor`, and `members.recovery.copies.Copies`."""
        assert without_rows or self.member.has_rows, f"{self.name} has no rows for {asker}"
        machine = self.member.machine
        if machine.state is not MemberState.ONLINE:
            raise NotServing(member=self.name, state=machine.state.name)
        if len(self.copies) >= copies.COPIES_MAX:
            raise TooManyCopies(open=len(self.copies), open_max=copies.COPIES_MAX)
        self.member.save()
        manifest = copies.manifest_of(self._config.group, machine, self.disk.as_store())
        self.copies[asker] = manifest.log_sequence
        copy = self.disk.checkpoint()
        for family in copies.OF_ROWS if without_rows else ():
            copy[family].clear()
        return OpenCopy(manifest, copy)

    def close_copy(self, asker: str) -> None:
        """See `Donor`."""
        self.copies.pop(asker, None)

    @property
    def _reads(self) -> bool:
        """Whether its run is at the log."""
        return self.recovery is None and not self.is_over and self.member.machine.state not in ENDED

    def _begin(self) -> None:
        self.disk.finish()
        self.member = self._make_member(self.name)
        self._catch_up: CatchUp | None = None
        self._witnesses: Witnesses | None = None
        self.trusts_log = False
        self._vouches = self.member.machine.log_sequence > 0
        self._was = MemberState.RECOVERING
        fence = self.member.state_store.fence()
        if fence:
            self.fence(StillFenced(member=self.name, explanation=fence))

    def _live_again(self) -> None:
        self.member.stop()
        self._begin()

    def _close(self) -> None:
        if self.recovery is not None:
            self.recovery.give_up()
            self.recovery = None
        self.copies.clear()

    def _open(self, state: LogState) -> None:
        """See `MemberRuntime._read_log`."""
        machine = self.member.machine
        self.member.state_store.check_identity(state.identity)
        if machine.log_sequence:
            self.member.state_store.check_last(self._log.message(machine.log_sequence))
        recovery_choice.check_start(
            state,
            machine.log_sequence,
            messages_max=self._config.recovery_log_messages_max,
            knows_members=bool(self._config.seeds),
        )
        self._catch_up = CatchUp(
            first_sequence=machine.log_sequence + 1,
            began_ms=self._now_ms,
            messages_max=JOIN_LAG_MESSAGES,
            transactions_max=JOIN_LAG_TRANSACTIONS,
        )

    def _check_reaches(self, state: LogState, sequence: int) -> None:
        try:
            check_reaches(state, sequence)
        except LogGap as gap:
            raise recovery_choice.why_gap(gap, state) from gap

    def _join_when_near(self, state: LogState) -> None:
        machine, applier, catch_up = self.member.machine, self.member.applier, self._catch_up
        if machine.state is MemberState.RECOVERING and catch_up is not None:
            rows_sequence = log_sequence_of(max(applier.position, 0))
            pending = applier.coordinator.length
            last = state.last_sequence
            if catch_up.is_near(machine.log_sequence, last, pending, rows_sequence):
                self._join_when_sure(state)

    def _join_when_sure(self, state: LogState) -> None:
        """See `members.runtime.join.be_sure`: whoever answers does so at once."""
        machine = self.member.machine
        if self.trusts_log:
            self._ask_to_join()
            return
        if self._witnesses is None:
            self._witnesses = Witnesses(machine.me, self._config.group, state, self._now_ms)
        for each in self._donors():
            self._witnesses.note(each.member.machine.me.address, each.progress())
        try:
            step, reason = self._witnesses.judge(
                machine.view,
                last_sequence=state.last_sequence,
                log_sequence=machine.log_sequence,
                digest_at=machine.digests.find,
                now_ms=self._now_ms,
            )
        except Fenced as error:
            self.fence(error)
            return
        machine.reason = reason
        if step is Step.JOIN:
            self._ask_to_join()

    def _ask_to_join(self) -> None:
        self.member.machine.caught_up()
        self._witness.asks_to_join(self.name)

    def _recover(self, needed: GroupcertError) -> None:
        self._witness.note(f"{self.name} needs a copy: {needed}")
        if self.member.machine.state is not MemberState.RECOVERING:
            self._stop_serving(MemberState.ERROR, str(needed))
        self.recovery = Recovery(self.joiner(), needed, self.disk, self._donors)

    def _donors(self) -> "list[SimulatedProcess]":
        """Those that answer now; it asks itself, too."""
        reaches = self._witness.reaches
        return [each for each in self._processes() if reaches(self.name, each.name)]

    def _note_state(self) -> None:
        """Acts on a new state, and on the error that ended the run."""
        state, failure, self.member.failure = self.member.machine.state, self.member.failure, None
        if state is not self._was:
            self._was = state
            self._witness.note(f"{self.name} is {state.name}: {self.member.machine.reason}")
            if state is MemberState.ONLINE:
                self._config = self._configured
                self._has_joined = self._vouches = True
                self._rejoins.joined(self._now_ms)
            elif state in ENDED:
                self.member.end_waiting()
                self.is_over = state is MemberState.LEFT
        if isinstance(failure, OutOfGroup):
            self._come_back(str(failure))
        elif isinstance(failure, GroupcertError):
            self.fence(failure)

    def _come_back(self, text: str) -> None:
        """See `members.process.lifecycle.Lifecycle._come_back`."""
        if self.member.machine.state is not MemberState.ERROR:
            self._stop_serving(MemberState.ERROR, text)
        delay_ms = self._rejoins.next_delay_ms(self._now_ms) if self._has_joined else None
        if delay_ms is None:
            self.is_over = True
        else:
            self._next_run_ms = self._now_ms + delay_ms

    def _stop_serving(self, state: MemberState, reason: str) -> None:
        self.member.stop_serving(state, reason)
        self._note_state()

    def _read_log_next(self) -> None:
        self._config = self._config.model_copy(update={"recovery_log_messages_max": 0})


def rows_sequence(disk: SimulatedDisk) -> int:
    """The message of the log that has the newest rows that a disk would have after any crash."""
    encoded = disk.durable(Family.DATA, CHECKPOINT_KEY)
    return log_sequence_of(max(Checkpoint.decode(encoded).position, 0)) if encoded else 0
