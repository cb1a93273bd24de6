"""What can go wrong with a cluster: each fault is injected and healed by itself.

The rule it keeps: `heal` may be called at any time and more than once, and `heal_all` does not
depend on what anybody remembers: it looks at containers, rules, clocks and disks.
"""

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal, Protocol

from tests.cluster.docker_cluster import EVERYBODY, MEMBERS, DockerCluster
from tests.cluster.network import Rule

BALLAST = "ballast"
BLOCK_BYTES = 1 << 20
DamageKind = Literal["truncated", "flipped"]


class Fault(Protocol):
    """Something that goes wrong, and its end."""

    def inject(self) -> None:
        """Breaks it."""
        ...

    def heal(self) -> None:
        """Ends it; nothing where it is not broken."""
        ...


def heal_all(cluster: DockerCluster) -> None:
    """Ends every fault; containers that are down are started. Damaged disks stay as they are."""
    cluster.network.clear()
    for name in MEMBERS:
        _remove_ballast(cluster, name)
        if cluster.has_clock_steps:
            cluster.clock_of(name).write_text("+0\n")
    for name in EVERYBODY:
        _go_on(cluster, name)


@dataclass(frozen=True)
class Down:
    """Processes that do nothing until it is healed."""

    cluster: DockerCluster
    names: Sequence[str]

    def heal(self) -> None:
        """Lets them go on where they were, or starts them."""
        for name in self.names:
            _go_on(self.cluster, name)


@dataclass(frozen=True)
class Killed(Down):
    """SIGKILL of processes."""

    def inject(self) -> None:
        """Kills them, one directly after the other."""
        self.cluster.kill(*self.names)


@dataclass(frozen=True)
class Stopped(Down):
    """SIGTERM, as an operator stops them."""

    def inject(self) -> None:
        """Stops them, all at the same time."""
        self.cluster.stop_containers(*self.names)


@dataclass(frozen=True)
class Paused(Down):
    """Frozen processes, whose connections stay: what a stopped virtual machine looks like."""

    def inject(self) -> None:
        """Freezes them."""
        self.cluster.pause(*self.names)


@dataclass(frozen=True)
class Partition:
    """No packet passes between two sides; with `one_way` none from the first to the second."""

    cluster: DockerCluster
    side: Sequence[str]
    other_side: Sequence[str]
    one_way: bool = False

    def inject(self) -> None:
        """Cuts them off, open connections too."""
        for rule in self._rules():
            self.cluster.network.drop(rule)

    def heal(self) -> None:
        """Lets packets pass."""
        for rule in self._rules():
            self.cluster.network.stop_dropping(rule)

    def _rules(self) -> list[Rule]:
        pairs = list(product(self.side, self.other_side))
        if not self.one_way:
            pairs += [(there, here) for here, there in pairs]
        ip = self.cluster.ip
        return [("--source", ip(here), "--destination", ip(there)) for here, there in pairs]


def isolated(cluster: DockerCluster, names: Sequence[str]) -> Partition:
    """These on one side, everybody else on the other."""
    return Partition(cluster, names, [name for name in EVERYBODY if name not in names])


@dataclass(frozen=True)
class PacketLoss:
    """Packets that some containers send are lost at random."""

    cluster: DockerCluster
    names: Sequence[str]
    share: float
    """0 to 1."""

    def inject(self) -> None:
        """Begins to lose them."""
        for rule in self._rules():
            self.cluster.network.drop(rule)

    def heal(self) -> None:
        """Loses no more."""
        for rule in self._rules():
            self.cluster.network.stop_dropping(rule)

    def _rules(self) -> list[Rule]:
        chance = ("-m", "statistic", "--mode", "random", "--probability", f"{self.share:.4f}")
        return [("--source", self.cluster.ip(name), *chance) for name in self.names]


@dataclass(frozen=True)
class PacketDelay:
    """Packets that some containers send to others arrive late, in their order."""

    cluster: DockerCluster
    names: Sequence[str]
    delay_ms: float
    """At the least: see `packet_delay`."""

    def inject(self) -> None:
        """Begins to hold them back."""
        for rule in self._rules():
            self.cluster.network.delay(rule, self.delay_ms)

    def heal(self) -> None:
        """Holds no more back; what is held back is lost, and sent again by its sender."""
        for rule in self._rules():
            self.cluster.network.stop_delaying(rule)

    def _rules(self) -> list[Rule]:
        return [("--source", self.cluster.ip(name)) for name in self.names]


@dataclass(frozen=True)
class ClockStep:
    """A member's clock is off from one second to the next; its monotonic clock is not.

    In a cluster whose clocks can be stepped. The library that does it makes a member several times
    slower, and breaks `time.sleep` of Python (EINVAL), which members do not call.
    """

    cluster: DockerCluster
    name: str
    seconds: int

    def inject(self) -> None:
        """Steps it; the member sees it within a second."""
        self.cluster.clock_of(self.name).write_text(f"{self.seconds:+d}\n")

    def heal(self) -> None:
        """Steps it back."""
        self.cluster.clock_of(self.name).write_text("+0\n")


@dataclass(frozen=True)
class DiskFull:
    """A member with a small disk has no byte left on it."""

    cluster: DockerCluster
    name: str

    def inject(self) -> None:
        """Fills it."""
        with (self.cluster.disk_of(self.name) / BALLAST).open("ab", buffering=0) as ballast:
            for size in (BLOCK_BYTES, 1):
                try:
                    while ballast.write(bytes(size)):
                        pass
                except OSError:
                    continue

    def heal(self) -> None:
        """Makes room again."""
        _remove_ballast(self.cluster, self.name)


@dataclass(frozen=True)
class LostDisk:
    """A process is killed and its disk is lost; healed, it starts with an empty one."""

    cluster: DockerCluster
    name: str

    def inject(self) -> None:
        """Kills it, and removes its files."""
        if self.cluster.state(self.name) == "running":
            self.cluster.kill(self.name)
        _empty(self.cluster.data_of(self.name))

    def heal(self) -> None:
        """Starts it."""
        _go_on(self.cluster, self.name)


@dataclass
class FileDamage:
    """A file of a process that is down has lost its end, or has a bit that is wrong.

    Healed, the disk is replaced by an empty one, as `LostDisk`: what is damaged is not used on.
    """

    cluster: DockerCluster
    name: str
    pattern: str
    """Of its path below the data folder, as `*.log`; one of those that match, by the seed."""
    kind: DamageKind
    seed: int = 0
    damaged: Path | None = field(default=None, init=False)

    def inject(self) -> None:
        """Damages one file."""
        assert self.cluster.state(self.name) == "exited", f"{self.name} is down"
        chance = random.Random(self.seed)
        folder = self.cluster.data_of(self.name)
        found = [path for path in folder.rglob(self.pattern) if path.is_file()]
        files = sorted(path for path in found if path.stat().st_size)
        assert files, f"{self.name} has a file {self.pattern} that is not empty"
        self.damaged = chance.choice(files)
        size = self.damaged.stat().st_size
        place = chance.randrange(size)
        with self.damaged.open("r+b") as file:
            if self.kind == "truncated":
                file.truncate(place)
                return
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))

    def heal(self) -> None:
        """Starts it with an empty disk."""
        if self.damaged is None:
            return
        LostDisk(self.cluster, self.name).inject()
        self.damaged = None
        _go_on(self.cluster, self.name)


def _go_on(cluster: DockerCluster, name: str) -> None:
    """Brings a container up from whatever state."""
    state = cluster.state(name)
    if state == "paused":
        cluster.unpause(name)
    elif state != "running":
        cluster.start_containers(name)


def _remove_ballast(cluster: DockerCluster, name: str) -> None:
    (cluster.disk_of(name) / BALLAST).unlink(missing_ok=True)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
