"""What operators do to a cluster, or have to do when a disk is damaged: long faults of their own.

The rule it keeps: a member whose disk is damaged is not helped before it has said what is wrong,
and what to do about it; then that is done, and nothing else.
"""

import random
from dataclasses import dataclass, field

from groupcert import Client, Consistency, MemberFailed
from groupcert.certifier.errors import GroupcertError
from groupcert.v1.group_pb2 import MemberState
from tests.cluster.docker_cluster import EVERYBODY, LOG_SERVERS, MEMBERS, PORT, DockerCluster
from tests.cluster.faults import FileDamage, LostDisk
from tests.commands import CommandFailed

STORE_FILES = ("*.sst", "*.sst", "*.sst", "MANIFEST-*", "*.log", "CURRENT", "OPTIONS-*")
"""Tables more often than the others: most of the rows are in them."""
LOG_FILES = ("streams/*/msgs/*.blk", "msgs/*.blk")
"""Of the stream itself, or of any log of the servers' own."""
NEXT_STEPS = ("--discard-state", "discard", "rejoin")
"""One of these words is in what a member says that cannot use its store."""


def rejoin(cluster: DockerCluster, name: str, *flags: str) -> None:
    """Has a member begin anew, as its operator would."""
    address = f"{cluster.ip(name)}:{PORT}"
    cluster.execute(name, "groupcert", "group", "rejoin", address, *flags)


@dataclass
class DamagedStore:
    """A member is killed, a file of its store is damaged, and it is started again."""

    cluster: DockerCluster
    name: str
    dice: random.Random = field(repr=False)
    pattern: str = ""
    kind: str = ""
    came: str = ""
    """What came of it, in words."""

    def inject(self) -> None:
        """Damages one file of the kind that the dice choose, of those that there are."""
        self.cluster.wait_online()  # Else there may be no store yet.
        self.cluster.kill(self.name)
        folder = self.cluster.data_of(self.name)
        found = [
            pattern
            for pattern in STORE_FILES
            if any(path.stat().st_size for path in folder.rglob(f"rocksdb/{pattern}"))
        ]
        self.pattern = self.dice.choice(found)
        self.kind = self.dice.choice(("truncated", "flipped"))
        seed = self.dice.randrange(1 << 32)
        damage = FileDamage(
            self.cluster,
            self.name,
            f"rocksdb/{self.pattern}",
            "truncated" if self.kind == "truncated" else "flipped",
            seed,
        )
        damage.inject()
        self.cluster.start_containers(self.name)

    def heal(self) -> None:
        """Does what the member asks for."""
        if not self.kind:
            return
        self.cluster.wait_for(f"{self.name} says what it is", self._is_settled)
        if self.came.startswith("ended"):
            LostDisk(self.cluster, self.name).inject()
            self.cluster.start_containers(self.name)
        elif not self.came.startswith("online"):
            rejoin(self.cluster, self.name, "--discard-state")

    def _is_settled(self) -> bool:
        """Whether it is ONLINE with all rows readable, has ended, or waits for its operator."""
        if self.cluster.state(self.name) == "exited":
            code = self.cluster.inspect(self.name)["State"]["ExitCode"]
            said = self.cluster.output(self.name, lines=5)
            self.came = f"ended with {code}: {said[-600:]}"
            assert any(word in said for word in NEXT_STEPS), f"no next step: {said}"
            return True
        status = self.cluster.status(self.name)
        if status is None:
            return False
        match status.observer.state:
            case MemberState.MEMBER_STATE_ONLINE:
                self.came = self._read_all()
                return True
            case MemberState.MEMBER_STATE_FENCED:
                self.came = f"fenced: {status.observer.reason}"
                assert any(word in self.came for word in NEXT_STEPS), f"no next step: {self.came}"
                return True
            case _:
                return False

    def _read_all(self) -> str:
        """Reads every row and the whole history: a block that cannot be read must say so."""
        try:
            with Client(self.cluster.address(self.name), consistency=Consistency.BEFORE) as client:
                with client.transaction() as transaction:
                    rows = sum(1 for _ in transaction.scan())
                for _ in client.history():
                    pass
        except (GroupcertError, MemberFailed) as error:
            return f"reads fail: {error}"
        return f"online with {rows} rows"


@dataclass
class DamagedLog:
    """A log server is killed, a bit of what it has stored is flipped, and it is started again; then
    a member with an empty disk reads the log from its beginning.

    It is always the same server: the others have every message. The member gets it all right, from
    whichever server; or it fences itself, and its operator replaces the server's disk.
    """

    cluster: DockerCluster
    dice: random.Random = field(repr=False)
    name: str = LOG_SERVERS[-1]
    file: str = ""
    came: str = ""

    def inject(self) -> None:
        """Damages one block, of the stream or of the servers' own log of it."""
        self.cluster.wait_online()
        self.cluster.kill(self.name)
        pattern = self.dice.choice(LOG_FILES)
        seed = self.dice.randrange(1 << 32)
        damage = FileDamage(self.cluster, self.name, pattern, "flipped", seed)
        damage.inject()
        assert damage.damaged is not None
        self.file = str(damage.damaged.relative_to(self.cluster.data_of(self.name)))
        self.cluster.start_containers(self.name)

    def heal(self) -> None:
        """Has a member read everything, and replaces the server's disk if it cannot."""
        if not self.file:
            return
        member = self.dice.choice(MEMBERS)
        LostDisk(self.cluster, member).inject()
        self.cluster.start_containers(member)
        self.cluster.wait_for(f"{member} says what it is", lambda: self._is_settled(member))
        if self.came.startswith("fenced"):
            LostDisk(self.cluster, self.name).inject()
            self.cluster.start_containers(self.name)
            rejoin(self.cluster, member, "--discard-state")

    def _is_settled(self, member: str) -> bool:
        status = self.cluster.status(member)
        if status is not None and status.observer.state == MemberState.MEMBER_STATE_ONLINE:
            self.came = f"{member} online by the log"
        elif status is not None and status.observer.state == MemberState.MEMBER_STATE_FENCED:
            self.came = f"fenced {member}: {status.observer.reason}"
        return bool(self.came)


@dataclass
class RollingRestart:
    """Everybody is stopped and started, one after the other; the next one when it is whole."""

    cluster: DockerCluster
    dice: random.Random = field(repr=False)

    def inject(self) -> None:
        """Restarts all, in any order."""
        for name in self.dice.sample(EVERYBODY, len(EVERYBODY)):
            self.cluster.restart(name)
            self.cluster.wait_online()

    def heal(self) -> None:
        """It heals itself."""


@dataclass
class Churn:
    """Members leave, are expelled, lose their disks; and come back."""

    cluster: DockerCluster
    name: str
    dice: random.Random = field(repr=False)
    how: str = ""

    def inject(self) -> None:
        """One member goes."""
        self.how = self.dice.choice(("leave", "expel", "restart", "lost disk"))
        address = f"{self.cluster.ip(self.name)}:{PORT}"
        other = self.dice.choice([name for name in MEMBERS if name != self.name])
        match self.how:
            case "leave":
                self._group("leave", address)
            case "expel":
                self._group("expel", self.name, f"{self.cluster.ip(other)}:{PORT}")
            case "restart":
                self.cluster.stop_containers(self.name)
            case _:
                LostDisk(self.cluster, self.name).inject()

    def heal(self) -> None:
        """It comes back."""
        if self.how == "leave":
            rejoin(self.cluster, self.name)
        elif self.how in ("restart", "lost disk"):
            self.cluster.start_containers(self.name)

    def _group(self, *arguments: str) -> None:
        try:
            self.cluster.execute(self.name, "groupcert", "group", *arguments)
        except CommandFailed as error:
            raise AssertionError(f"{self.name}: {error}") from None
