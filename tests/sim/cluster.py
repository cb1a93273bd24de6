"""A simulated group: members, their clients and a log on one thread, and chance from one seed.

The rule it keeps: everything that happens is one event after another, each chosen by one
`random.Random`; so a seed and a number of steps are a run, and the same run every time. First comes
work with faults, then a heal: no more faults, and all must come to an end and agree.
"""

import json
import random
from collections import deque
from collections.abc import Callable, Collection

from groupcert.certifier.errors import DigestMismatch, GroupcertError, LogGap, LogRewritten
from groupcert.certifier.storage.store import Family
from groupcert.members.core.views import ViewMember
from groupcert.members.errors.membership import RowsDiffer, StillFenced
from groupcert.members.errors.recovery import ExtraTransactions, LogCutShort
from groupcert.members.recovery.joiner import Joiner
from groupcert.members.runtime.state_store import MEMBER_KEY
from groupcert.members.settings.member import MemberConfig
from tests.laboratory.history import Fault, History
from tests.laboratory.plans import ALL_WORKLOADS
from tests.sim import process as sim_process
from tests.sim.checkers import Checks, Violation
from tests.sim.clients import Client
from tests.sim.clock import DRIFT, Clock
from tests.sim.disk import SimulatedDisk
from tests.sim.member import (
    EXPEL_MS,
    SNAPSHOT_LEASE_MS,
    STABLE_PERIOD_MS,
    SUSPICION_MS,
    Message,
    SimulatedMember,
)
from tests.sim.memory_order import MemoryLog
from tests.sim.process import SimulatedProcess
from tests.sim.scenarios import SCENARIOS, scenario_of
from tests.sim.settings import first_settings

NAMES = ("m1", "m2", "m3", "m4")
FOUNDERS = 3
CLIENTS = 8
HEAL_ROUNDS_MAX = 200
TAIL_ROUNDS = 20
"""Rounds after which nothing is asked of a group that has lost the tail of its log."""
QUIET_ROUNDS = SNAPSHOT_LEASE_MS // STABLE_PERIOD_MS + 2
"""Rounds without anything to do after which the group is at rest: all leases have ended by then."""
TAIL_LOST = (DigestMismatch, LogCutShort, LogGap, LogRewritten, RowsDiffer)
"""What members meet in a log without its tail; some reports that come later are of what it lost."""
TRACE_EVENTS = 40
TURN_STEPS = 30
"""After so many events every member that is not held up has had a turn: chance alone makes nobody
silent for so long that it is expelled."""
EXCUSED_MS = 2 * (SUSPICION_MS + EXPEL_MS)


class Cluster:
    """One run. `processes` holds those that run now; `wire` what is late on its way to the log.

    `fenced`, `foreign`: members that must not serve until an operator acts, as they have fenced
    themselves or have rows of another timeline.
    """

    def __init__(
        self,
        seed: int,
        scenario: str | None = None,
        checks: Checks | None = None,
        without_rows: Collection[str] = (),
    ) -> None:
        """`without_rows`: names of members that keep none."""
        self.without_rows = without_rows
        self.dice = random.Random(seed)
        self.scenario = scenario or scenario_of(seed)
        self.now_ms = 0
        self.log = MemoryLog("simulated")
        self.log.create()
        self.checks = checks or Checks()
        self.history = History(seed=seed, workloads=ALL_WORKLOADS)
        self.disks = {name: SimulatedDisk() for name in NAMES}
        self.processes: dict[str, SimulatedProcess] = {}
        self.wire: list[Message] = []
        self.log_away_until_ms = 0
        self.paused_until_ms: dict[str, int] = {}
        self.cut_until_ms: dict[str, int] = {}
        self.lagging_until_ms: dict[str, int] = {}
        self.fenced: set[str] = set()
        self.foreign: set[str] = set()
        self.leaving: set[str] = set()
        self.is_tail_lost = False
        self.rolled = self.lost = 0
        self.reached = dict.fromkeys(("copied", "trimmed", "refused", "rejoined", "fences"), 0)
        self.trace: deque[str] = deque(maxlen=TRACE_EVENTS)
        self.steps = 0
        self._kept_down: set[str] = set()
        self._lost_disks: dict[str, int] = {}
        self._excused_until_ms: dict[str, int] = {}
        self.checks.may_be_expelled = self._may_be_expelled
        self._runs = 0
        self._faults = SCENARIOS[self.scenario]
        drift = DRIFT if self._faults.drift else 0.0
        self.clocks = {name: Clock(1 + self.dice.uniform(-drift, drift)) for name in NAMES}
        self._recovery_messages_max = self.dice.choice((0, 0, 60))
        self._unreachable_ms = self.dice.choice((0, 0, 1_500))
        self._clients = [
            Client(number, self.dice, self.with_rows, self.checks, self.history, self.now)
            for number in range(CLIENTS)
        ]
        self._work: tuple[tuple[int, Callable[[], None]], ...] = (
            (20, self._clients_act),
            (20, self._members_send),
            (20, self._members_read),
            (20, self._appliers_step),
            (5, self._disks_flush),
            (10, self._clocks_tick),
            (2, self._wire_delivers),
            (2, self._logs_kept),
            (4, self._recoveries_go_on),
        )
        for name in NAMES[:FOUNDERS]:
            self.start(name)

    @property
    def members(self) -> dict[str, SimulatedMember]:
        """The present run of each process."""
        return {name: process.member for name, process in self.processes.items()}

    def now(self) -> int:
        """The time, which no member knows."""
        return self.now_ms

    def run(self, steps: int) -> None:
        """Works for a number of steps, then heals and checks.

        Raises:
            Violation: A promise was broken.
            Exception: A member failed, by an assertion of its own or otherwise.
        """
        for _ in range(steps):
            self.step()
        self.heal()
        if not self.is_tail_lost:
            self.checks.settled(list(self.members.values()))

    def step(self) -> None:
        """One event."""
        self.now_ms += self.dice.randint(1, 10)
        self.steps += 1
        if self.steps % TURN_STEPS == 0:
            self._turn()
        work = [*self._work, (self._faults.weight, self._fault)]
        (event,) = self.dice.choices(
            [event for _, event in work], weights=[weight for weight, _ in work]
        )
        event()

    def heal(self) -> None:
        """Ends all faults, and lets everybody finish what is begun."""
        self.log_away_until_ms = 0
        for held_up in (self.paused_until_ms, self.cut_until_ms, self.lagging_until_ms):
            held_up.clear()
        for client in self._clients:
            client.is_finishing = True
        while self.wire:
            self._wire_delivers()
        quiet_rounds = 0
        for number in range(HEAL_ROUNDS_MAX):
            quiet_rounds = quiet_rounds + 1 if self._round() else 0
            if quiet_rounds == QUIET_ROUNDS or (self.is_tail_lost and number == TAIL_ROUNDS):
                return
        states = {
            name: (member.machine.state.name, member.machine.reason, member.machine.log_sequence)
            for name, member in self.members.items()
        }
        text = f"no rest after {HEAL_ROUNDS_MAX} rounds without faults"
        raise Violation(f"{text}: {states}, {self.log.state()}")

    def online(self) -> list[SimulatedMember]:
        """Members that operators may use."""
        return [member for member in self.members.values() if member.is_online]

    def with_rows(self) -> list[SimulatedMember]:
        """Those that clients may read from."""
        return [member for member in self.online() if member.has_rows]

    def may_start(self, name: str) -> bool:
        """Whether a member does not run, and nothing keeps it down."""
        process = self.processes.get(name)
        return (process is None or process.is_over) and name not in self._kept_down

    def start(self, name: str) -> None:
        """Starts a member's process."""
        if name in self._kept_down:
            return
        if name in self.processes:
            self.stop(name)
        config = MemberConfig(
            group="simulated",
            member=name,
            log_server="embedded",
            seeds=tuple(f"{each}:1" for each in NAMES if each != name),
            recovery_log_messages_max=self._recovery_messages_max,
        )
        self.processes[name] = SimulatedProcess(
            config, self.disks[name], self.log, self._make_member, self._processes, self
        )

    def stop(self, name: str) -> None:
        """Stops a member's process in good order."""
        self.excuse(name, self.now_ms)
        self.processes.pop(name).stop()

    def crash(self, name: str) -> None:
        """Kills it: a part of what it did not flush is lost, and of what it was sending."""
        process = self.processes.pop(name)
        self.wire += [each for each in process.member.outbox if self.dice.random() < 0.5]
        process.crash(self.dice.randint(0, self.disks[name].unsynced))

    def lose_disk(self, name: str) -> None:
        """The member, which does not run, has an empty disk from now on."""
        self.disks[name].wipe()
        self._lost_disks[name] = self._runs
        self.foreign.discard(name)
        self.fenced.discard(name)

    def lose_tail(self, last_sequence: int) -> None:
        """The log ends there from now on, and is filled again; who has read more notices, now or at
        its next start. What nobody notices is left out: a message that comes again to the place
        where it was, and rows that are ahead of what was read.
        """
        self.is_tail_lost = True
        self.wire.clear()
        self.log.truncate(last_sequence)
        self.checks.lost_tail(last_sequence)
        newest_version = len(self.checks.history)
        acknowledged = [each for each in self.history.operations if each.is_committed]
        self.lost = sum(each.version > newest_version for each in acknowledged)
        for name in NAMES:
            process = self.processes.get(name)
            if process is not None and self.answers(name):
                process.read(0)
            elif process is not None:
                self.crash(name)
            read, rows = self.durable_sequence(name), sim_process.rows_sequence(self.disks[name])
            if name not in self.processes and read <= last_sequence < rows:
                self._kept_down.add(name)

    def is_spare(self, name: str) -> bool:
        """Whether the group does not need this disk to go on with all that it has: beside members
        without rows, as they trim the log behind the disk's last report, if another one is online.
        """
        if self.without_rows:
            return any(each.name != name for each in self.with_rows())
        first_sequence = self.log.state().first_sequence
        return first_sequence == 1 or any(
            self.durable_sequence(other) >= first_sequence - 1
            for other in NAMES
            if other != name and other not in self.foreign | self.fenced
        )

    def durable_sequence(self, name: str) -> int:
        """The last message of the log that a disk would know of after any crash."""
        saved = self.disks[name].durable(Family.META, MEMBER_KEY)
        return json.loads(saved)["log_sequence"] if saved else 0

    def mend(self, name: str) -> None:
        """The operator of a fenced member has it begin anew, without what the group has not."""
        self.foreign.discard(name)
        self.fenced.discard(name)
        self._lost_disks[name] = self._runs
        self.processes[name].discard_state()

    def excuse(self, name: str, until_ms: int) -> None:
        """What befell a member until then is a reason to expel it."""
        self._excused_until_ms[name] = max(self._excused_until_ms.get(name, 0), until_ms)

    def note(self, event: str) -> None:
        """Remembers an event for who reads of a failure."""
        self.trace.append(f"{self.now_ms:>7} ms  {event}")

    def answers(self, name: str) -> bool:
        """Whether a member is not held up."""
        return self.paused_until_ms.get(name, 0) <= self.now_ms

    def reaches(self, name: str, other: str) -> bool:
        """See `Witness`."""
        is_cut = max(self.cut_until_ms.get(each, 0) for each in (name, other)) > self.now_ms
        return self.answers(other) and not (is_cut and name != other)

    def fenced_itself(self, name: str, error: GroupcertError) -> None:
        """See `Witness`."""
        self.note(f"{name} fences itself: {error}")
        has_cause = (
            (isinstance(error, ExtraTransactions) and name in self.foreign)
            or (isinstance(error, StillFenced) and name in self.fenced)
            or (isinstance(error, TAIL_LOST) and self.is_tail_lost)
        )
        if not has_cause:
            raise Violation(f"{name} fences itself without a cause: {error!r}") from error
        self.reached["fences"] += 1
        self.reached["refused"] += isinstance(error, ExtraTransactions)
        self.fenced.add(name)

    def trims(self, name: str, first_sequence: int) -> None:
        """See `Witness`: the log has what a member of the view would read after any crash, and what
        those will read who copy its state.
        """
        self.note(f"{name} trims the log, which begins at {first_sequence}")
        self.reached["trimmed"] += 1
        for each in self.members[name].machine.view.members:
            process, reached = self.processes.get(each.name), self.durable_sequence(each.name)
            if process and process.member.machine.me == each:
                reached = min([reached, *process.copies.values()])
            is_lost = each.incarnation <= self._lost_disks.get(each.name, 0)
            if reached < first_sequence - 1 and not is_lost:
                text = f"{each.name} is in the view and has only {reached}"
                raise Violation(f"{name} trims the log up to {first_sequence}, {text}")

    def asks_to_join(self, name: str) -> None:
        """See `Witness`: it lacks little, and nothing of what its rows have."""
        member, last = self.members[name], self.log.state().last_sequence
        lag, pending = last - member.machine.log_sequence, member.applier.coordinator.length
        newest_version = member.machine.certifier.window.newest_version
        is_late = lag > sim_process.JOIN_LAG_MESSAGES or pending > sim_process.JOIN_LAG_TRANSACTIONS
        if is_late or member.committed_version > newest_version:
            text = f"has rows of {member.committed_version}, and has certified {newest_version}"
            raise Violation(f"{name} joins, lacks {lag}, {pending} wait, {text}")
        others = [each for other, each in self.members.items() if self.reaches(name, other)]
        reached = max(each.machine.log_sequence for each in others)
        if reached > last and not self.processes[name].trusts_log:
            raise Violation(f"{name} joins at {last}, and others have read up to {reached}")

    def adopted(self, name: str, joiner: Joiner, donor: str) -> None:
        """See `Witness`: nothing that only the joiner had is replaced."""
        self.note(f"{name} has a copy of {donor}'s state, and had {joiner.log_sequence} before")
        self.reached["copied"] += 1
        if name in self.foreign:
            raise Violation(f"{name} had {joiner.gtid_executed}, which a copy has replaced")

    def _make_member(self, name: str) -> SimulatedMember:
        """A run of a member from what its disk has, with settings of its own."""
        self._runs += 1
        dice = self.dice
        member = SimulatedMember(
            ViewMember(
                name=name,
                incarnation=self._runs,
                address=f"{name}:1",
                weight=dice.choice((10, 50)),
                without_rows=name in self.without_rows,
            ),
            first_settings(dice),
            self.disks[name],
            self.checks,
            workers=dice.randint(1, 4),
            unreachable_ms=self._unreachable_ms,
            clock=lambda: self.clocks[name].at(self.now_ms),
        )
        self.reached["rejoined"] += name in self.processes
        self.excuse(name, self.now_ms)
        self.leaving.discard(name)
        self.note(f"{name} starts as run {self._runs}, from {member.machine.log_sequence}")
        if name not in self.fenced:
            self.checks.loaded(member)
        elif not member.state_store.fence():
            raise Violation(f"{name} has fenced itself, and has forgotten it")
        return member

    def _processes(self) -> list[SimulatedProcess]:
        return list(self.processes.values())

    def _may_be_expelled(self, member: ViewMember) -> bool:
        """Whether it is gone, by itself or with its run, or something held it up of late."""
        process = self.processes.get(member.name)
        if process is None or process.member.machine.me != member or self.is_tail_lost:
            return True
        excused_until_ms = self._excused_until_ms.get(member.name, 0) + EXCUSED_MS
        return member.name in self.leaving or self.now_ms <= excused_until_ms

    def _some(self) -> list[SimulatedProcess]:
        """Half of the members that are not held up, in any order."""
        running = [each for each in self.processes.values() if self.answers(each.name)]
        return self.dice.sample(running, (len(running) + 1) // 2)

    def _turn(self) -> None:
        """Every member that is not held up does what it does all the time."""
        running = [each for each in self.processes.values() if self.answers(each.name)]
        for process in running:
            process.tick()
            process.member.pump()
            while process.member.outbox and self._log_answers(process.name):
                self._send(process.member)
        for process in running:
            if self._log_answers(process.name):
                is_lagging = self.lagging_until_ms.get(process.name, 0) > self.now_ms
                process.read(2 if is_lagging else 1_000)

    def _log_answers(self, name: str) -> bool:
        return max(self.log_away_until_ms, self.cut_until_ms.get(name, 0)) <= self.now_ms

    def _gets_through(self, name: str) -> bool:
        """Whether what is sent or asked for now is neither lost nor late."""
        return self._log_answers(name) and self.dice.random() >= self._faults.loss

    def _clients_act(self) -> None:
        for client in self.dice.sample(self._clients, len(self._clients) // 2):
            client.act()

    def _members_send(self) -> None:
        for process in self._some():
            process.member.pump()
            if process.member.outbox and self._gets_through(process.name):
                self._send(process.member)

    def _send(self, member: SimulatedMember) -> None:
        """Sends one message, mostly the oldest one; now and then the log gets it twice."""
        overtaking = self.dice.random() < 0.1
        message = member.outbox.pop(self.dice.randrange(len(member.outbox)) if overtaking else 0)
        self.log.append(*message)
        self.note(f"{member.name} sends {message.message_id}")
        if self.dice.random() < 0.05:
            self.wire.append(message)

    def _members_read(self) -> None:
        for process in self._some():
            if self._gets_through(process.name):
                is_lagging = self.lagging_until_ms.get(process.name, 0) > self.now_ms
                process.read(1 if is_lagging else self.dice.randint(1, 6))

    def _appliers_step(self) -> None:
        for process in self._some():
            for _ in range(self.dice.randint(1, 6)):
                process.member.applier.step(self.dice)

    def _disks_flush(self) -> None:
        for process in self._some():
            process.member.flush()

    def _clocks_tick(self) -> None:
        for process in self._some():
            process.tick()

    def _logs_kept(self) -> None:
        for process in self._some():
            if self._log_answers(process.name):
                process.keep_log()

    def _recoveries_go_on(self) -> None:
        for process in self._some():
            process.recover_on()

    def _wire_delivers(self) -> None:
        """A late message reaches the log, which has forgotten that it may have had it before."""
        if self.wire:
            message_id, payload = self.wire.pop(self.dice.randrange(len(self.wire)))
            self.log.append(f"{message_id} at {self.now_ms}", payload)
            self.note(f"{message_id} arrives late")

    def _fault(self) -> None:
        faults = self._faults.faults
        (fault,) = self.dice.choices(
            [fault for _, fault in faults], weights=[weight for weight, _ in faults]
        )
        self.note(f"fault: {fault.__name__}")
        self.history.faults.append(Fault(self.now_ms, fault.__name__))
        fault(self)

    def _round(self) -> bool:
        """A turn for everybody; True if there was nothing left to do."""
        self.now_ms += STABLE_PERIOD_MS
        was = self._progress()
        for name in NAMES:
            if self.may_start(name):
                self.start(name)
            elif name in self.fenced and not self.is_tail_lost:
                self.mend(name)
        for process in self._processes():
            process.tick()
            process.member.pump()
            for message in process.member.outbox:
                self.log.append(*message)
            process.member.outbox.clear()
        for process in self._processes():
            process.read(1_000)
            process.recover_on()
            process.member.applier.drain()
            process.member.flush()
        for client in self._clients:
            client.act()
        at_rest = was == self._progress() and all(
            member.is_online and not member.machine.publisher.undecided
            for member in self.members.values()
        )
        return at_rest and all(client.is_done for client in self._clients)

    def _progress(self) -> list[tuple[int, int, int, int]]:
        """What changes while there is something to do; reports alone are none."""
        return [
            (
                member.machine.me.incarnation,
                member.machine.view.view_id,
                member.machine.certifier.window.newest_version,
                member.machine.certifier.stable_version,
            )
            for member in self.members.values()
        ]
