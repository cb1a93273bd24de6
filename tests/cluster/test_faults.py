"""Each fault of `faults.py` breaks what it says, and what was broken works again when it is healed.

A fault that breaks nothing would have every test of a broken cluster pass.
"""

import time
from collections.abc import Sequence
from itertools import combinations

import pytest

from groupcert import Client, Consistency
from groupcert.v1 import group_pb2
from tests.cluster import docker_cluster
from tests.cluster.docker_cluster import (
    CLUSTERS_MAX,
    EVERYBODY,
    LOG_PORT,
    LOG_SERVERS,
    MEMBERS,
    PORT,
    DockerCluster,
    remove_leftovers,
)
from tests.cluster.engine import containers, docker
from tests.cluster.faults import (
    DamageKind,
    DiskFull,
    Fault,
    FileDamage,
    Killed,
    LostDisk,
    PacketDelay,
    PacketLoss,
    Partition,
    Paused,
    Stopped,
    heal_all,
    isolated,
)
from tests.cluster.network import Network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.in_turns]

DELAY_SECONDS = 0.15
CONNECT = """
import socket, sys, time
began = time.monotonic()
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    print(time.monotonic() - began)
except OSError:
    print("nan")
"""
"""Prints how many seconds a connection took, or nan where there was none in time."""


def connect_seconds(
    cluster: DockerCluster, source: str, target: str, seconds_max: float = 30.0
) -> float:
    """How long one container needs to connect to another one; nan: it cannot."""
    port = LOG_PORT if target in LOG_SERVERS else PORT
    command = ("python3", "-c", CONNECT, cluster.ip(target), str(port), str(seconds_max))
    return float(cluster.execute(source, *command))


def reaches(cluster: DockerCluster, source: str, target: str) -> bool:
    """Tells whether one container reaches another one, soon."""
    return connect_seconds(cluster, source, target, 0.5) >= 0


def assert_reaches(cluster: DockerCluster, source: str, target: str) -> None:
    """One container reaches another one, maybe late on a busy machine."""
    cluster.wait_for(f"{source} reaches {target}", lambda: reaches(cluster, source, target))


def put(cluster: DockerCluster, member: str, key: str) -> None:
    """Commits one row."""
    with (
        Client(cluster.address(member), timeout_ms=60_000) as client,
        client.transaction() as transaction,
    ):
        transaction.put(key.encode(), b"1")


def has(cluster: DockerCluster, member: str, key: str) -> bool:
    """Tells whether a member has a row, once it has all that was committed before."""
    with (
        Client(cluster.address(member), consistency=Consistency.BEFORE) as client,
        client.transaction() as transaction,
    ):
        return transaction.get(key.encode()) == b"1"


@pytest.mark.parametrize(
    ("kind", "state"), [(Killed, "exited"), (Stopped, "exited"), (Paused, "paused")]
)
@pytest.mark.parametrize(
    "names",
    [("m2", "log3"), pytest.param(EVERYBODY, marks=pytest.mark.nightly)],
    ids="+".join,
)
def test_processes_are_down_until_healed(
    cluster: DockerCluster, kind: type[Killed | Stopped | Paused], state: str, names: Sequence[str]
) -> None:
    fault = kind(cluster, names)
    fault.inject()
    assert {name: cluster.state(name) for name in names} == dict.fromkeys(names, state)
    fault.heal()
    fault.heal()
    assert {name: cluster.state(name) for name in names} == dict.fromkeys(names, "running")
    cluster.wait_online()
    put(cluster, "m1", f"{kind.__name__}/{'+'.join(names)}")


def test_a_partition_lasts_over_a_restart_and_leaves_clients_alone(cluster: DockerCluster) -> None:
    fault = Partition(cluster, ["m1"], LOG_SERVERS)
    fault.inject()
    assert not any(reaches(cluster, "m1", name) for name in LOG_SERVERS)
    assert_reaches(cluster, "m1", "m2")
    assert_reaches(cluster, "m2", "log1")
    cluster.kill("m1")
    cluster.start_containers("m1")
    assert not reaches(cluster, "m1", "log1")
    fault.heal()
    for name in LOG_SERVERS:
        assert_reaches(cluster, "m1", name)
    assert cluster.network.rules() == []


def test_a_partition_in_one_direction(cluster: DockerCluster) -> None:
    fault = Partition(cluster, ["m1"], ["m2"], one_way=True)
    fault.inject()
    assert len(cluster.network.rules()) == 1
    assert not reaches(cluster, "m1", "m2"), "the request is lost"
    assert not reaches(cluster, "m2", "m1"), "the answer is lost"
    fault.heal()
    assert_reaches(cluster, "m1", "m2")


def log_server_of(cluster: DockerCluster, member: str) -> str | None:
    """With which log server a member has a connection now."""
    connected = cluster.execute(member, "cat", "/proc/net/tcp")
    for name in LOG_SERVERS:
        ip = bytes(map(int, reversed(cluster.ip(name).split("."))))
        if f" {ip.hex().upper()}:{LOG_PORT:04X} 01 " in connected:
            return name
    return None


def view_ids_of(cluster: DockerCluster) -> set[int]:
    """The ids of the views that members are in."""
    statuses = [cluster.status(name) for name in MEMBERS]
    return {status.view_id for status in statuses if status is not None}


def test_members_leave_a_log_server_that_is_alone(cluster: DockerCluster) -> None:
    """It answers their pings and takes nothing: without this they would be expelled for silence."""
    view_ids = view_ids_of(cluster)
    alone = cluster.wait_for("m1 with a server", lambda: log_server_of(cluster, "m1"))
    assert alone is not None
    Partition(cluster, [alone], [name for name in LOG_SERVERS if name != alone]).inject()
    for name in MEMBERS:
        put(cluster, name, f"alone/{name}")
    cluster.wait_for(
        "m1 with another one", lambda: log_server_of(cluster, "m1") not in {alone, None}
    )
    assert view_ids_of(cluster) == view_ids, "nobody was expelled"


@pytest.mark.nightly
def test_everybody_alone(cluster: DockerCluster) -> None:
    faults = [isolated(cluster, [name]) for name in EVERYBODY]
    for fault in faults:
        fault.inject()
    for source, target in combinations(EVERYBODY, 2):
        assert not reaches(cluster, source, target)
    heal_all(cluster)
    for source, target in combinations(EVERYBODY, 2):
        assert_reaches(cluster, source, target)


def test_lost_packets_are_lost_and_the_group_goes_on(cluster: DockerCluster) -> None:
    all_lost = PacketLoss(cluster, ["m1"], 1.0)
    all_lost.inject()
    assert not reaches(cluster, "m1", "m2")
    all_lost.heal()
    some_lost = PacketLoss(cluster, EVERYBODY, 0.05)
    some_lost.inject()
    for number in range(20):
        put(cluster, "m1", f"loss/{number}")
    assert cluster.network.dropped_packets() > 0
    some_lost.heal()
    assert cluster.network.rules() == []


def test_delayed_packets_arrive_late(cluster: DockerCluster) -> None:
    def is_quick() -> bool:
        return connect_seconds(cluster, "m1", "m2") < DELAY_SECONDS

    cluster.wait_for("a quick connection", is_quick)
    fault = PacketDelay(cluster, ["m1", "m2"], DELAY_SECONDS * 1_000)
    fault.inject()
    for _ in range(5):
        assert connect_seconds(cluster, "m1", "m2") >= 2 * DELAY_SECONDS, "there and back"
    began = time.monotonic()
    put(cluster, "m1", "delay")
    assert time.monotonic() - began >= DELAY_SECONDS
    fault.heal()
    cluster.wait_for("a quick connection", is_quick)


def test_a_full_disk_stops_its_member_until_there_is_room(cluster: DockerCluster) -> None:
    fault = DiskFull(cluster, "m3")
    fault.inject()

    def is_in_error() -> bool:
        put(cluster, "m1", "disk-full")
        status = cluster.status("m3")
        return status is not None and status.observer.state == group_pb2.MEMBER_STATE_ERROR

    cluster.wait_for("m3 notices", is_in_error)
    fault.heal()
    cluster.wait_online()
    assert has(cluster, "m3", "disk-full")


@pytest.mark.parametrize(
    ("name", "pattern", "kind"),
    [("m2", "*.log", "truncated"), ("m2", "MANIFEST-*", "flipped"), ("log2", "*.blk", "flipped")],
)
def test_a_damaged_disk_is_replaced(
    cluster: DockerCluster, name: str, pattern: str, kind: DamageKind
) -> None:
    for number in range(20):
        put(cluster, "m1", f"damage/{number}")
    cluster.kill(name)
    fault = FileDamage(cluster, name, pattern, kind, seed=1)
    fault.inject()
    assert fault.damaged is not None
    fault.heal()
    cluster.wait_online()
    assert all(has(cluster, member, "damage/19") for member in MEMBERS)


def test_a_lost_disk_is_filled_again(cluster: DockerCluster) -> None:
    put(cluster, "m1", "lost-disk")
    for name in ("m1", "log1"):
        fault = LostDisk(cluster, name)
        fault.inject()
        assert list(cluster.data_of(name).iterdir()) == []
        fault.heal()
        cluster.wait_online()
    assert has(cluster, "m1", "lost-disk")


def test_all_faults_at_once_are_healed(cluster: DockerCluster) -> None:
    faults: list[Fault] = [
        Paused(cluster, ["m2"]),
        Killed(cluster, ["log2"]),
        Stopped(cluster, ["m1"]),
        isolated(cluster, ["log3"]),
        PacketLoss(cluster, EVERYBODY, 0.2),
        PacketDelay(cluster, LOG_SERVERS, 5),
        DiskFull(cluster, "m3"),
    ]
    for fault in faults:
        fault.inject()
    heal_all(cluster)
    cluster.wait_online()
    for name in MEMBERS:
        put(cluster, name, f"healed/{name}")
        assert has(cluster, name, f"healed/{name}")


def test_what_a_killed_run_left_is_removed(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number = CLUSTERS_MAX
    monkeypatch.setattr(docker_cluster, "CLUSTERS_MAX", number + 1)
    project = f"groupcert-test-{number}"
    label = f"com.docker.compose.project={project}"
    docker("network", "create", "--label", label, project)
    docker("volume", "create", "--label", label, project)
    options = ("--detach", "--network", project, "--volume", f"{project}:/var/lib/groupcert")
    docker("run", *options, "--label", label, "--entrypoint", "sleep", image, "600")
    network = Network(number)
    network.prepare()
    network.drop(("--source", "192.0.2.1"))
    remove_leftovers()
    assert not containers(f"label={label}")
    assert not docker("volume", "ls", "--quiet", f"--filter=label={label}")
    assert not docker("network", "ls", "--quiet", f"--filter=label={label}")
    assert network.rules() == []
