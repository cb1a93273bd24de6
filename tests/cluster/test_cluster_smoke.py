"""The group of the compose file in containers: it comes up as promised, and loses nothing.

What users get is looked at from outside: from the engine, from the log servers' own interfaces, and
with the client on this machine.
"""

import json
import socket
import urllib.request
from collections.abc import Iterable
from functools import partial

import nats
import pytest
from nats.errors import Error as NatsError

from groupcert import Client, Consistency
from tests.cluster.docker_cluster import (
    EVERYBODY,
    LOG_PORT,
    LOG_SERVERS,
    MEMBERS,
    METRICS_PORT,
    DockerCluster,
)
from tests.cluster.faults import Killed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMMITS = 50
STREAM = "GROUPCERT_shop"


@pytest.fixture(scope="module")
def plain_cluster(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterable[DockerCluster]:
    """The compose file as it is, but for what tests must know."""
    with DockerCluster(tmp_path_factory.mktemp("cluster"), image) as cluster:
        yield cluster


def commit_all(address: str, prefix: str, numbers: Iterable[int]) -> dict[bytes, bytes]:
    """Commits a row for each number at one member; returns what was acknowledged."""
    rows = {}
    with Client(address, timeout_ms=60_000) as client:
        for number in numbers:
            key, value = f"{prefix}/{number}".encode(), str(number).encode()
            with client.transaction() as transaction:
                transaction.put(key, value)
            rows[key] = value
    return rows


def assert_everywhere(cluster: DockerCluster, rows: dict[bytes, bytes]) -> None:
    """Every member has all rows, now."""
    for name in MEMBERS:
        with (
            Client(cluster.address(name), consistency=Consistency.BEFORE) as client,
            client.transaction() as transaction,
        ):
            found = transaction.get_many(rows)
        assert found == rows, name


def sees_durable_log(cluster: DockerCluster, name: str) -> bool:
    """Whether all are in a member's view, and three servers have the log: busy ones are asked
    again whether they sync.
    """
    status = cluster.status(name)
    if status is None or {member.name for member in status.members} != set(MEMBERS):
        return False
    return status.observer.log_durable and status.observer.log_replicas == 3


def test_members_see_a_log_that_is_replicated_and_durable(plain_cluster: DockerCluster) -> None:
    for name in MEMBERS:
        plain_cluster.wait_for(f"{name} sees it", partial(sees_durable_log, plain_cluster, name))
    assert plain_cluster.wait_for("a leader", plain_cluster.stream_leader) in LOG_SERVERS


def test_commits_at_each_member_are_on_all(plain_cluster: DockerCluster) -> None:
    rows: dict[bytes, bytes] = {}
    for name in MEMBERS:
        rows |= commit_all(plain_cluster.address(name), f"smoke-{name}", range(COMMITS))
    assert_everywhere(plain_cluster, rows)


def test_a_container_can_do_no_more_than_it_must(plain_cluster: DockerCluster) -> None:
    for name in EVERYBODY:
        document = plain_cluster.inspect(name)
        assert document["HostConfig"]["ReadonlyRootfs"]
        assert document["HostConfig"]["CapDrop"] == ["ALL"]
        assert "no-new-privileges:true" in document["HostConfig"]["SecurityOpt"]
        assert plain_cluster.execute(name, "id", "-u").strip() == "10001"
        writes = ("python3", "-c", "import os; print(os.access('/opt/groupcert', os.W_OK))")
        assert plain_cluster.execute(name, *writes).strip() == "False"


def test_only_loopback_reaches_published_ports(plain_cluster: DockerCluster) -> None:
    for name in MEMBERS:
        ports = plain_cluster.inspect(name)["NetworkSettings"]["Ports"]
        (published,) = ports["7101/tcp"]
        assert published["HostIp"] == "127.0.0.1"
        with Client(f"127.0.0.1:{published['HostPort']}") as client:
            assert client.status().observer.name == name
    for name in LOG_SERVERS:
        assert not any(plain_cluster.inspect(name)["NetworkSettings"]["Ports"].values())


def test_members_tell_their_metrics(plain_cluster: DockerCluster) -> None:
    for name in MEMBERS:
        url = f"http://{plain_cluster.ip(name)}:{METRICS_PORT}/metrics"
        with urllib.request.urlopen(url, timeout=60) as page:
            lines = page.read().decode().splitlines()
        assert 'groupcert_member_state{state="ONLINE"} 1.0' in lines
        assert "groupcert_log_durable 1.0" in lines


def test_every_container_becomes_healthy(plain_cluster: DockerCluster) -> None:
    def is_healthy(name: str) -> bool:
        return bool(plain_cluster.inspect(name)["State"]["Health"]["Status"] == "healthy")

    for name in EVERYBODY:
        plain_cluster.wait_for(f"{name} healthy", partial(is_healthy, name))
    assert plain_cluster.wait_for("all healthy at once", lambda: all(map(is_healthy, EVERYBODY)))


@pytest.mark.parametrize(
    "verb",
    [
        f"STREAM.DELETE.{STREAM}",
        f"STREAM.PURGE.{STREAM}",
        f"STREAM.UPDATE.{STREAM}",
        f"STREAM.MSG.DELETE.{STREAM}",
    ],
)
async def test_a_member_can_take_nothing_from_the_log(
    plain_cluster: DockerCluster, verb: str
) -> None:
    refusals: list[str] = []

    async def note(error: Exception) -> None:
        refusals.append(str(error))

    connection = await nats.connect(plain_cluster.log_address("log1", "member"), error_cb=note)
    try:
        before = await connection.request(f"$JS.API.STREAM.INFO.{STREAM}", timeout=60)
        with pytest.raises(NatsError):
            await connection.request(f"$JS.API.{verb}", b'{"seq": 1}', timeout=1)
        after = await connection.request(f"$JS.API.STREAM.INFO.{STREAM}", timeout=60)
    finally:
        await connection.close()
    assert any("permissions violation" in refusal.lower() for refusal in refusals)
    first, last = (json.loads(answer.data)["state"]["first_seq"] for answer in (before, after))
    assert first == last


async def test_an_operator_can_trim_the_log(plain_cluster: DockerCluster) -> None:
    connection = await nats.connect(plain_cluster.log_address("log1", "operator"))
    try:
        answer = await connection.request(
            f"$JS.API.STREAM.PURGE.{STREAM}", b'{"seq": 1}', timeout=60
        )
    finally:
        await connection.close()
    assert json.loads(answer.data)["success"]


def test_the_log_answers_nobody_without_a_password(plain_cluster: DockerCluster) -> None:
    with socket.create_connection((plain_cluster.ip("log1"), LOG_PORT), timeout=60) as connection:
        connection.sendall(b"CONNECT {}\r\nPING\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"Authorization Violation" in answer
    assert b"PONG" not in answer


def test_passwords_are_in_no_output_and_no_status(plain_cluster: DockerCluster) -> None:
    for name in EVERYBODY:
        assert "test-" not in plain_cluster.output(name, lines=10_000)
    for name in MEMBERS:
        assert "test-" not in str(plain_cluster.status(name))


def test_nothing_is_lost_with_a_killed_member(plain_cluster: DockerCluster) -> None:
    rows = commit_all(plain_cluster.address("m2"), "before", range(COMMITS))
    fault = Killed(plain_cluster, ["m2"])
    fault.inject()
    rows |= commit_all(plain_cluster.address("m1"), "without", range(COMMITS))
    fault.heal()
    plain_cluster.wait_online()
    rows |= commit_all(plain_cluster.address("m2"), "after", range(COMMITS))
    assert_everywhere(plain_cluster, rows)


def test_commits_resume_after_the_death_of_the_logs_leader(plain_cluster: DockerCluster) -> None:
    rows = commit_all(plain_cluster.address("m1"), "led", range(COMMITS))
    leader = plain_cluster.wait_for("a leader", plain_cluster.stream_leader)
    assert leader is not None
    fault = Killed(plain_cluster, [leader])
    fault.inject()
    rows |= commit_all(plain_cluster.address("m1"), "leaderless", range(1))
    rows |= commit_all(plain_cluster.address("m2"), "led-anew", range(COMMITS))
    plain_cluster.wait_for(
        "another leader", lambda: plain_cluster.stream_leader() not in {None, leader}
    )
    fault.heal()
    rows |= commit_all(plain_cluster.address("m3"), "led-again", range(COMMITS))
    assert_everywhere(plain_cluster, rows)
