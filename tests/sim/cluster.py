"""A simulated group: members, their clients and a log on one thread, and chance from one seed.

The rule it keeps: everything that happens is one event after another, each chosen by one
`random.Random`; so a seed and a number of steps are a run, and the same run every time. First comes
work with faults, then a heal: no more faults, and all must come to an end and agree.
"""

import random
from collections import deque
from collections.abc import Callable

from members.log_records import GroupSettings
from members.member import MemberState
from members.views import ViewMember
from tests.sim.checkers import Checks, Violation
from tests.sim.clients import Client
from tests.sim.disk import SimulatedDisk
from tests.sim.faults import FAULTS, FAULTS_WEIGHT
from tests.sim.member import SNAPSHOT_LEASE_MS, STABLE_PERIOD_MS, Message, SimulatedMember
from tests.sim.memory_order import MemoryLog

NAMES = ("m1", "m2", "m3", "m4")
FOUNDERS = 3
CLIENTS = 6
HEAL_ROUNDS_MAX = 200
QUIET_ROUNDS = SNAPSHOT_LEASE_MS // STABLE_PERIOD_MS + 2
"""Rounds without anything to do after which the group is at rest: all leases have ended by then."""
TRACE_EVENTS = 30


class Cluster:
    """One run. `members` holds those that run now; `wire` what is late on its way to the log."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now_ms = 0
        self.log = MemoryLog("simulated")
        self.log.create()
        self.checks = Checks()
        self.disks = {name: SimulatedDisk() for name in NAMES}
        self.members: dict[str, SimulatedMember] = {}
        self.wire: list[Message] = []
        self.trace: deque[str] = deque(maxlen=TRACE_EVENTS)
        self._runs = 0
        self._clients = [
            Client(number, self.dice, self.online, self.checks) for number in range(CLIENTS)
        ]
        self._work: tuple[tuple[int, Callable[[], None]], ...] = (
            (20, self._clients_act),
            (20, self._members_send),
            (20, self._members_read),
            (20, self._appliers_step),
            (5, self._disks_flush),
            (10, self._clocks_tick),
            (2, self._wire_delivers),
        )
        for name in NAMES[:FOUNDERS]:
            self.start(name)

    def run(self, steps: int) -> None:
        """Works for a number of steps, then heals and checks.

        Raises:
            Violation: A promise was broken.
            Exception: A member failed, by an assertion of its own or otherwise.
        """
        for _ in range(steps):
            self.step()
        self.heal()
        self.checks.settled(list(self.members.values()))

    def step(self) -> None:
        """One event."""
        self.now_ms += self.dice.randint(1, 10)
        work = [*self._work, (FAULTS_WEIGHT, self._fault)]
        (event,) = self.dice.choices(
            [event for _, event in work], weights=[weight for weight, _ in work]
        )
        event()

    def heal(self) -> None:
        """Ends all faults, and lets everybody finish what is begun."""
        for client in self._clients:
            client.is_finishing = True
        while self.wire:
            self._wire_delivers()
        quiet_rounds = 0
        for _ in range(HEAL_ROUNDS_MAX):
            quiet_rounds = quiet_rounds + 1 if self._round() else 0
            if quiet_rounds == QUIET_ROUNDS:
                return
        states = {name: member.mind.state.name for name, member in self.members.items()}
        raise Violation(f"no rest after {HEAL_ROUNDS_MAX} rounds without faults: {states}")

    def online(self) -> list[SimulatedMember]:
        """Members that clients may use."""
        return [member for member in self.members.values() if member.is_online]

    def start(self, name: str) -> None:
        """Starts a member from what its disk has, as a new run with settings of its own."""
        self._runs += 1
        dice = self.dice
        settings = GroupSettings(
            settings_version=1,
            group="simulated",
            group_uuid="aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa",
            gtid_assignment_block_size=dice.choice((1, 3, 1_000_000)),
            gc_window=dice.choice(("close", "tight")),
            write_set_items_max=100,
            outcomes_max=dice.choice((8, 30, 1_000)),
        )
        self.members[name] = SimulatedMember(
            ViewMember(name=name, incarnation=self._runs, address=f"{name}:1"),
            settings,
            self.disks[name],
            self.checks,
            workers=dice.randint(1, 4),
        )
        self.note(f"{name} starts as run {self._runs}")

    def note(self, event: str) -> None:
        """Remembers an event for who reads of a failure."""
        self.trace.append(f"{self.now_ms:>7} ms  {event}")

    def _some_members(self) -> list[SimulatedMember]:
        """Half of the members that are not held up, in any order."""
        members = [each for each in self.members.values() if each.paused_until_ms <= self.now_ms]
        return self.dice.sample(members, (len(members) + 1) // 2)

    def _clients_act(self) -> None:
        for client in self.dice.sample(self._clients, CLIENTS // 2):
            client.act(self.now_ms)

    def _members_send(self) -> None:
        for member in self._some_members():
            member.pump()
            if member.outbox:
                self._send(member)

    def _send(self, member: SimulatedMember) -> None:
        """Sends one message, mostly the oldest one; now and then the log gets it twice."""
        overtaking = self.dice.random() < 0.1
        message = member.outbox.pop(self.dice.randrange(len(member.outbox)) if overtaking else 0)
        self.log.append(*message)
        self.note(f"{member.name} sends {message.message_id}")
        if self.dice.random() < 0.05:
            self.wire.append(message)

    def _members_read(self) -> None:
        for member in self._some_members():
            self._read(member, self.dice.randint(1, 6))

    def _read(self, member: SimulatedMember, messages_max: int) -> None:
        """Hands over what is next, and tells the member once it has caught up."""
        deliveries = self.log.portion(member.mind.log_sequence + 1)[:messages_max]
        if deliveries:
            member.read(deliveries)
            self.note(f"{member.name} reads up to {deliveries[-1].sequence}")
        if member.mind.log_sequence == self.log.state().last_sequence:
            member.mind.caught_up()

    def _appliers_step(self) -> None:
        for member in self._some_members():
            for _ in range(self.dice.randint(1, 6)):
                member.applier.step(self.dice)

    def _disks_flush(self) -> None:
        for member in self._some_members():
            member.flush()

    def _clocks_tick(self) -> None:
        for member in self._some_members():
            member.tick(self.now_ms)

    def _wire_delivers(self) -> None:
        """A late message reaches the log, which has forgotten that it may have had it before."""
        if self.wire:
            message_id, payload = self.wire.pop(self.dice.randrange(len(self.wire)))
            self.log.append(f"{message_id} at {self.now_ms}", payload)
            self.note(f"{message_id} arrives late")

    def _fault(self) -> None:
        (fault,) = self.dice.choices(
            [fault for _, fault in FAULTS], weights=[weight for weight, _ in FAULTS]
        )
        self.note(f"fault: {fault.__name__}")
        fault(self)

    def _round(self) -> bool:
        """A turn for everybody; True if there was nothing left to do."""
        self.now_ms += STABLE_PERIOD_MS
        was = self.log.state().last_sequence
        for name in NAMES:
            member = self.members.get(name)
            if member is None or member.mind.state in (MemberState.ERROR, MemberState.LEFT):
                self._restart(name)
                was = -1
        for member in self.members.values():
            member.paused_until_ms = 0
            member.tick(self.now_ms)
            member.pump()
            for message in member.outbox:
                self.log.append(*message)
            member.outbox.clear()
        for member in self.members.values():
            self._read(member, messages_max=1_000)
            member.applier.drain()
            member.flush()
        for client in self._clients:
            client.act(self.now_ms)
        at_rest = was == self.log.state().last_sequence and all(
            member.is_online and not member.mind.publisher.undecided
            for member in self.members.values()
        )
        return at_rest and all(client.is_done for client in self._clients)

    def _restart(self, name: str) -> None:
        if name in self.members:
            self.members.pop(name).stop()
        self.start(name)
