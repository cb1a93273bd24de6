"""The group of `deploy/compose.yaml` in containers, for tests: up, ONLINE, broken, healed, gone.

It is the compose file that users have, with a few settings laid over it: containers stay down until
the test starts them, and what a fault needs is prepared. Several clusters can run at the same time
on one machine: each holds a number, from which its project, its network and its rules are named.

The rule it keeps: nothing is left afterwards; what a killed run left is removed by the next one.
"""

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from groupcert import Client, Consistency, MemberFailed
from groupcert.certifier.errors import GroupcertError
from groupcert.members.host.loopback import free_port
from groupcert.members.security.credentials import ANONYMOUS, Credentials, Tls
from groupcert.v1 import group_pb2
from tests.cluster.certificates import make_authority, make_certificate
from tests.cluster.engine import (
    compose_command,
    containers,
    docker,
    try_run,
)
from tests.cluster.log_kinds import LogKind
from tests.cluster.network import Network
from tests.commands import CommandFailed, run
from tests.laboratory import mutants

TESTS = Path(__file__).resolve().parents[1]
COMPOSE_FILE = TESTS.parent / "deploy" / "compose.yaml"
MEMBERS = ("m1", "m2", "m3")
TLS_FILE = COMPOSE_FILE.with_name("compose.tls.yaml")
ETCD_FILE = COMPOSE_FILE.with_name("compose.etcd.yaml")
POSTGRESQL_FILE = COMPOSE_FILE.with_name("compose.postgresql.yaml")
LOG_SERVERS = ("log1", "log2", "log3")
EVERYBODY = (*MEMBERS, *LOG_SERVERS)
POSTGRESQL_SERVERS = ("pg1", "pg2", "pg3")
HOST_NUMBERS = dict(
    zip((*EVERYBODY, *POSTGRESQL_SERVERS), (11, 12, 13, 21, 22, 23, 31, 32, 33), strict=True)
)
PASSWORDS = {
    "MEMBER_PASSWORD": "test-member",
    "OPERATOR_PASSWORD": "test-operator",
    "ROUTE_PASSWORD": "test-route",
    "POSTGRES_PASSWORD": "test-postgres",
    "SHOP_PASSWORD": "test-shop",
}
PORT, METRICS_PORT, LOG_PORT = 7101, 9101, LogKind.NATS.port
CLUSTERS_MAX = 8
USER_ID = 10_001
ONLINE_SECONDS_MAX = 240.0
POLL_SECONDS = 0.1
POLL_MS = 2_000
CLIENT_TIMEOUT_MS = 20_000
LAST_LINES = 60
Found = TypeVar("Found")
FAKETIME = "/usr/$LIB/faketime/libfaketimeMT.so.1"


class DockerCluster:
    """Three members and three log servers; names are those of the compose file's services."""

    def __init__(
        self,
        folder: Path,
        image: str,
        *,
        settings: Mapping[str, object] | None = None,
        clock_steps: bool = False,
        small_disks: Mapping[str, int] | None = None,
        tls: bool = False,
        mutant: str = "",
        log: LogKind = LogKind.NATS,
        postgresql: bool = False,
    ) -> None:
        """Prepares; nothing runs before `start`.

        Args:
            folder: For its files; empty, and on this machine's disk.
            image: As `tests.cluster.image` makes it.
            settings: Of all members, beside those of `deploy/member.toml`.
            clock_steps: The members' clocks can be stepped, which makes reading them slower. A log
                server's cannot: it is a static program, which no library gets into.
            small_disks: Members whose data folder is a file system of its own, and its bytes.
            tls: Everything speaks mutual TLS; `credentials` are a client's.
            mutant: What is wrong with all members, of `tests.cluster.mutants`; nothing by default.
            log: What the log servers are.
            postgresql: Each member has a PostgreSQL server.
        """
        self.folder = folder
        self._lock, number = _take_number()
        self.project = _project(number)
        self.network = Network(number)
        self._subnet = f"10.213.{100 + number}"
        self._settings = dict(settings or {})
        self.has_clock_steps = clock_steps
        self.log = log
        self._has_postgresql = postgresql
        self._small_disks = dict(small_disks or {})
        self.credentials = ANONYMOUS
        if tls:
            self.credentials = Credentials(tls=self._make_certificates())
        self._mutant = mutant
        self.environment = {
            **PASSWORDS,
            "IMAGE": image,
            "SUBNET": self._subnet,
            "CERTIFICATES": str(self._certificates),
            **{f"{name.upper()}_PORT": str(free_port()) for name in (*MEMBERS, "p1", "p2", "p3")},
        }

    def start(self) -> None:
        """Starts everything; returns when every member is ONLINE.

        Raises:
            CommandFailed: As it says.
            AssertionError: The members did not come up in time.
        """
        remove_leftovers()
        _remove(self.project, self.network)
        for name, size in self._small_disks.items():
            self.disk_of(name).mkdir()
            options = f"size={size},uid={USER_ID},gid={USER_ID},mode=700"
            run("mount", "-t", "tmpfs", "-o", options, self.project, str(self.disk_of(name)))
        if self.has_clock_steps:
            for name in MEMBERS:
                self.clock_of(name).parent.mkdir(parents=True, exist_ok=True)
                self.clock_of(name).write_text("+0\n")
        self._overlay_path.write_text(json.dumps(self._overlay(), indent=1))
        self.network.prepare()
        self._compose("up", "--detach", "--no-build")
        self.wait_online()

    def stop(self) -> None:
        """Removes everything, whatever its state."""
        _remove(self.project, self.network)
        self._lock.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Every container that is to run."""
        return (*EVERYBODY, *(POSTGRESQL_SERVERS if self._has_postgresql else ()))

    def ip(self, name: str) -> str:
        """A container's address, the same for as long as the cluster lives."""
        return f"{self._subnet}.{HOST_NUMBERS[name]}"

    def address(self, member: str) -> str:
        """Where clients reach a member."""
        return f"{self.ip(member)}:{PORT}"

    @property
    def addresses(self) -> dict[str, str]:
        """Where clients reach each member."""
        return {name: self.address(name) for name in MEMBERS}

    @property
    def compose(self) -> tuple[str, ...]:
        """The first words of Compose's commands for this cluster, which need its environment."""
        return (
            *compose_command(),
            "--project-name",
            self.project,
            "--file",
            str(COMPOSE_FILE),
            *(("--file", str(TLS_FILE)) if self.credentials.tls else ()),
            *(("--file", str(ETCD_FILE)) if self.log is LogKind.ETCD else ()),
            *(("--file", str(POSTGRESQL_FILE)) if self._has_postgresql else ()),
            "--file",
            str(self._overlay_path),
        )

    def dsn(self, server: str) -> str:
        """Where clients reach a PostgreSQL server, as the owner of its database."""
        return f"postgresql://shop:{PASSWORDS['SHOP_PASSWORD']}@{self.ip(server)}/shop"

    def log_address(self, log_server: str, user: str) -> str:
        """Where `member` or `operator` connects to a log server, with the password."""
        password = PASSWORDS[f"{user.upper()}_PASSWORD"]
        return f"nats://{user}:{password}@{self.ip(log_server)}:{LOG_PORT}"

    def monitor(self, log_server: str) -> str:
        """Where a log server tells of itself."""
        return f"http://{self.ip(log_server)}:{self.log.monitor_port}"

    def container(self, name: str) -> str:
        """The container's name at the engine."""
        return f"{self.project}-{name}"

    def inspect(self, name: str) -> dict[str, Any]:
        """All that the engine knows of a container."""
        documents: list[dict[str, Any]] = json.loads(docker("inspect", self.container(name)))
        return documents[0]

    def state(self, name: str) -> str:
        """`running`, `paused` or `exited`."""
        return str(self.inspect(name)["State"]["Status"])

    def execute(self, name: str, *command: str) -> str:
        """What a command prints inside of a container."""
        return docker("exec", self.container(name), *command)

    def kill(self, *names: str) -> None:
        """SIGKILL, one directly after the other."""
        docker("kill", "--signal=KILL", *map(self.container, names))
        for name in names:
            docker("wait", self.container(name))

    def stop_containers(self, *names: str) -> None:
        """SIGTERM, all at the same time, and SIGKILL if one takes longer than users allow it."""
        self._compose("stop", *names)

    def start_containers(self, *names: str) -> None:
        """Starts containers that are down."""
        docker("start", *map(self.container, names))

    def restart(self, *names: str) -> None:
        """Stops them as an operator would, and starts them."""
        self.stop_containers(*names)
        self.start_containers(*names)

    def pause(self, *names: str) -> None:
        """Freezes their processes; connections stay."""
        for name in names:
            # The engine gives up where a busy machine takes long to freeze a process.
            self.wait_for(f"{name} frozen", partial(self._try_to_pause, name))

    def unpause(self, *names: str) -> None:
        """Lets them go on."""
        docker("unpause", *map(self.container, names))

    def data_of(self, name: str) -> Path:
        """A container's data on this machine."""
        if name in self._small_disks:
            return self.disk_of(name)
        volume = f"{self.project}_{name}"
        return Path(docker("volume", "inspect", "--format={{.Mountpoint}}", volume).strip())

    def disk_of(self, name: str) -> Path:
        """Where a member's small disk is."""
        return self.folder / f"disk-{name}"

    def clock_of(self, name: str) -> Path:
        """The file that has the seconds by which a member's clock is off: `+3600`."""
        assert self.has_clock_steps, "a cluster whose clocks can be stepped"
        return self.folder / "clocks" / name / "offset"

    def client(
        self,
        member: str,
        *,
        timeout_ms: int = CLIENT_TIMEOUT_MS,
        consistency: Consistency = Consistency.EVENTUAL,
    ) -> Client:
        """A client of a member, on this machine."""
        own = self.credentials
        return Client(
            self.address(member),
            timeout_ms=timeout_ms,
            consistency=consistency,
            tls=own.tls,
            token=own.token,
        )

    def status(
        self, member: str, timeout_ms: int = CLIENT_TIMEOUT_MS
    ) -> group_pb2.GroupStatus | None:
        """The group as a member sees it; None if it does not answer in time."""
        with suppress(GroupcertError, MemberFailed):
            with self.client(member, timeout_ms=timeout_ms) as client:
                return client.status()
        return None

    def wait_online(self, names: Iterable[str] = MEMBERS) -> float:
        """Returns when these members are ONLINE in a view of at least them; how many seconds
        it took."""
        began = time.monotonic()
        wanted = set(names)
        for name in wanted:
            self.wait_for(f"{name} ONLINE", partial(self._is_online, name, wanted))
        return time.monotonic() - began

    def wait_healthy(self) -> None:
        """Returns when every log server has what the others have: one that lacks some of it, since
        it lost its disk, say, does not help to elect a leader.
        """
        for name in LOG_SERVERS:
            monitor = self.monitor(name)
            self.wait_for(f"{name} healthy", partial(self.log.is_healthy, monitor))

    def stream_leader(self) -> str | None:
        """The log server that leads the group's log, as a majority of them says; None: none."""
        return self.log.leader({name: self.monitor(name) for name in LOG_SERVERS})

    def wait_for(self, what: str, find: Callable[[], Found]) -> Found:
        """Returns what `find` finds, as soon as that is true."""
        deadline = time.monotonic() + ONLINE_SECONDS_MAX
        while not (found := find()):
            assert time.monotonic() < deadline, f"{what}: not within {ONLINE_SECONDS_MAX:.0f} s"
            time.sleep(POLL_SECONDS)
        return found

    def output(self, name: str, lines: int = LAST_LINES) -> str:
        """What a container said last."""
        tail = f"--tail={lines}"
        with suppress(CommandFailed):
            return run("sh", "-c", f"docker logs {tail} {self.container(name)} 2>&1")
        return ""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException as error:
            for name in self.names:
                error.add_note(f"--- {name}\n{self.output(name)}")
            self.stop()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()

    @property
    def _certificates(self) -> Path:
        return self.folder / "certificates"

    def _make_certificates(self) -> Tls:
        folder = self._certificates
        make_authority(folder)
        for name in EVERYBODY:
            make_certificate(folder, name, [self.ip(name)])
            (folder / f"{name}.key").chmod(0o644)  # A container's user reads it.
        make_certificate(folder, "shop")
        return Tls(
            authority=folder / "authority.pem",
            certificate=folder / "shop.pem",
            key=folder / "shop.key",
        )

    @property
    def _overlay_path(self) -> Path:
        return self.folder / "overlay.yaml"

    def _overlay(self) -> dict[str, object]:
        """What is laid over the compose file; YAML takes JSON as it is."""
        services = {name: self._service(name) for name in self.names}
        volumes = {
            name: {
                "driver": "local",
                "driver_opts": {"type": "none", "o": "bind", "device": str(self.disk_of(name))},
            }
            for name in self._small_disks
        }
        return {"services": services, "volumes": volumes}

    def _service(self, name: str) -> dict[str, object]:
        service: dict[str, object] = {
            "container_name": self.container(name),
            "restart": "no",
        }
        if name in MEMBERS:
            environment = {
                f"GROUPCERT_{setting.upper()}": _text(value)
                for setting, value in self._settings.items()
            }
            if self.has_clock_steps:
                environment |= {
                    # Twice the sign, since Compose reads one as a variable of its own.
                    "LD_PRELOAD": FAKETIME.replace("$", "$$"),
                    "FAKETIME_TIMESTAMP_FILE": "/clock/offset",
                    "FAKETIME_CACHE_DURATION": "1",
                    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                }
                service["volumes"] = [f"{self.clock_of(name).parent}:/clock:ro"]
            if self._mutant:
                mounted = Path("/mutant-tree/tests")
                folder = mounted / mutants.FOLDER.relative_to(TESTS)
                environment |= mutants.environment_of(
                    "tests.cluster.mutants", self._mutant, folder, mounted
                )
                service["volumes"] = [f"{TESTS}:{mounted}:ro"]
            service["environment"] = environment
        return service

    def _compose(self, *arguments: str) -> None:
        values = (f"{name}={value}" for name, value in self.environment.items())
        run("env", *values, *self.compose, *arguments)

    def _try_to_pause(self, name: str) -> bool:
        with suppress(CommandFailed):
            docker("pause", self.container(name))
        return self.state(name) == "paused"

    def _is_online(self, name: str, wanted: set[str]) -> bool:
        status = self.status(name, POLL_MS)
        if status is None:
            assert self.state(name) != "exited", f"{name} ended:\n{self.output(name)}"
            return False
        is_online = status.observer.state == group_pb2.MEMBER_STATE_ONLINE
        return is_online and wanted <= {member.name for member in status.members}


def remove_leftovers() -> None:
    """Removes what runs that were killed have left."""
    for number in range(CLUSTERS_MAX):
        lock = _try_number(number)
        if lock is not None:
            with lock:
                _remove(_project(number), Network(number))


def _remove(project: str, network: Network) -> None:
    label = f"label=com.docker.compose.project={project}"
    with suppress(CommandFailed):
        if found := containers(label):
            try_run("docker", "unpause", *found)
            try_run("docker", "rm", "--force", "--volumes", *found)
        for kind in ("volume", "network"):
            if names := docker(kind, "ls", "--quiet", f"--filter={label}").split():
                try_run("docker", kind, "rm", *names)
    network.remove()
    for line in Path("/proc/mounts").read_text().splitlines():
        source, place, *_ = line.split(" ")
        if source == project:
            try_run("umount", place)


def _project(number: int) -> str:
    return f"groupcert-test-{number}"


def _take_number() -> tuple[IO[bytes], int]:
    """The lowest number that nobody holds; it is held for as long as the file is open."""
    for number in range(CLUSTERS_MAX):
        lock = _try_number(number)
        if lock is not None:
            return lock, number
    raise CommandFailed(f"{CLUSTERS_MAX} clusters run on this machine already")


def _try_number(number: int) -> IO[bytes] | None:
    path = Path(tempfile.gettempdir()) / f"{_project(number)}.lock"
    lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
