"""What can go wrong with a cluster, by name: each scenario draws one fault after the other.

The rule it keeps: whom a fault hits is drawn by the dice alone, but for the log's leader, which is
asked for at that moment.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.cluster.docker_cluster import EVERYBODY, LOG_SERVERS, MEMBERS, DockerCluster
from tests.cluster.faults import (
    ClockStep,
    DiskFull,
    Fault,
    Killed,
    PacketDelay,
    PacketLoss,
    Partition,
    Paused,
    Stopped,
    isolated,
)
from tests.cluster.log_kinds import LogKind
from tests.cluster.operators import (
    Churn,
    DamagedLog,
    DamagedStore,
    RollingRestart,
)

Draw = Callable[[DockerCluster, random.Random], Fault]
Names = Callable[[DockerCluster, random.Random], Sequence[str]]
SMALL_DISK = "m3"
"""The member that `disk-full` hits."""
ONLY_NATS = ("damage-log-server",)
"""It damages files of NATS. An etcd whose files are damaged does not start, and its operators
replace it, as etcd's manual says; what members do meanwhile is as if it were killed."""
STEPS_SECONDS = (3_600, -3_600, 86_400 * 400, 30, -30)


class Scenario(NamedTuple):
    """A kind of fault, and how long one of them lasts."""

    draw: Draw
    seconds_min: float = 1.0
    seconds_max: float = 8.0
    """Longer than it takes to put a silent member out of the view, with `SETTINGS`."""
    clock_steps: bool = False
    """It takes a cluster whose clocks can be stepped."""


@dataclass(frozen=True)
class All:
    """Several faults at the same time."""

    cluster: DockerCluster
    faults: Sequence[Fault]

    def inject(self) -> None:
        """Injects each."""
        for fault in self.faults:
            fault.inject()

    def heal(self) -> None:
        """Heals each."""
        for fault in self.faults:
            fault.heal()


def log_leader(cluster: DockerCluster, dice: random.Random) -> str:
    """The log server that leads; any, where none does at the moment."""
    drawn = dice.choice(LOG_SERVERS)
    return cluster.stream_leader() or drawn


def _member(_cluster: DockerCluster, dice: random.Random) -> Sequence[str]:
    return [dice.choice(MEMBERS)]


def _log_server(cluster: DockerCluster, dice: random.Random) -> Sequence[str]:
    """One that does not lead."""
    order = dice.sample(LOG_SERVERS, len(LOG_SERVERS))
    leader = cluster.stream_leader()
    return [next(name for name in order if name != leader)]


def _log_leader(cluster: DockerCluster, dice: random.Random) -> Sequence[str]:
    return [log_leader(cluster, dice)]


def _minority(_cluster: DockerCluster, dice: random.Random) -> Sequence[str]:
    return [dice.choice(MEMBERS), dice.choice(LOG_SERVERS)]


def _everything(_cluster: DockerCluster, dice: random.Random) -> Sequence[str]:
    return dice.sample(EVERYBODY, len(EVERYBODY))


VICTIMS: dict[str, Names] = {
    "member": _member,
    "log-server": _log_server,
    "log-leader": _log_leader,
    "minority": _minority,
    "everything": _everything,
}
KINDS: dict[str, type[Killed | Stopped | Paused]] = {
    "kill": Killed,
    "pause": Paused,
    "stop": Stopped,
}


def _processes(kind: type[Killed | Stopped | Paused], names: Names) -> Draw:
    return lambda cluster, dice: kind(cluster, names(cluster, dice))


def _partitioned(names: Names) -> Draw:
    """Cut off from everybody, or only one way, or only from the log servers."""

    def draw(cluster: DockerCluster, dice: random.Random) -> Fault:
        side = names(cluster, dice)
        others = [name for name in EVERYBODY if name not in side]
        match dice.randrange(4):
            case 0:
                return Partition(cluster, side, others, one_way=True)
            case 1:
                return Partition(cluster, others, side, one_way=True)
            case _:
                return isolated(cluster, side)

    return draw


def _halves(cluster: DockerCluster, dice: random.Random) -> Fault:
    """One or two of the members and one or two of the log servers on each side."""
    side = [
        *dice.sample(MEMBERS, dice.randint(1, 2)),
        *dice.sample(LOG_SERVERS, dice.randint(1, 2)),
    ]
    return isolated(cluster, side)


def _some(dice: random.Random) -> Sequence[str]:
    return dice.sample(EVERYBODY, dice.randint(1, len(EVERYBODY)))


def _loss(cluster: DockerCluster, dice: random.Random) -> Fault:
    return PacketLoss(cluster, _some(dice), dice.choice((0.02, 0.1, 0.3)))


def _delay(cluster: DockerCluster, dice: random.Random) -> Fault:
    return PacketDelay(cluster, _some(dice), dice.choice((2.0, 20.0, 100.0)))


def _clock_steps(cluster: DockerCluster, dice: random.Random) -> Fault:
    names = dice.sample(MEMBERS, dice.randint(1, len(MEMBERS)))
    return All(cluster, [ClockStep(cluster, name, dice.choice(STEPS_SECONDS)) for name in names])


SCENARIOS: dict[str, Scenario] = {
    **{
        f"{verb}-{victims}": Scenario(_processes(kind, names))
        for verb, kind in KINDS.items()
        for victims, names in VICTIMS.items()
    },
    **{
        f"partition-{victims}": Scenario(_partitioned(VICTIMS[victims]))
        for victims in ("member", "log-server", "log-leader", "minority")
    },
    "partition-halves": Scenario(_halves),
    "delay": Scenario(_delay),
    "loss": Scenario(_loss),
    "clock-steps": Scenario(_clock_steps, 2, 6, clock_steps=True),
    "disk-full": Scenario(lambda cluster, _: DiskFull(cluster, SMALL_DISK)),
    "damage-rocksdb": Scenario(
        lambda cluster, dice: DamagedStore(cluster, dice.choice(MEMBERS), dice), 1, 3
    ),
    "damage-log-server": Scenario(DamagedLog, 1, 3),
    "rolling-restart": Scenario(RollingRestart, 0, 1),
    "churn": Scenario(lambda cluster, dice: Churn(cluster, dice.choice(MEMBERS), dice), 0, 5),
}


def scenarios_of(log: LogKind) -> list[str]:
    """Names of the scenarios that make sense with a log on such servers."""
    return [name for name in SCENARIOS if log is LogKind.NATS or name not in ONLY_NATS]


def mixed(cluster: DockerCluster, dice: random.Random) -> Fault:
    """Two scenarios at the same time, on one cluster without clock steps and damage."""
    names = [
        name
        for name, scenario in SCENARIOS.items()
        if not scenario.clock_steps and not name.startswith(("damage", "rolling", "churn"))
    ]
    return All(cluster, [SCENARIOS[name].draw(cluster, dice) for name in dice.sample(names, 2)])


SCENARIOS["mixed"] = Scenario(mixed)
