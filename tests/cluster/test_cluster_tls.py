"""The group of the compose files with mutual TLS everywhere: what works, and who stays outside."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from groupcert import Client, Consistency
from groupcert.certifier.errors import NotServing
from groupcert.members.security.credentials import Tls
from groupcert.v1 import group_pb2
from tests.cluster.certificates import make_authority, make_certificate
from tests.cluster.docker_cluster import LOG_PORT, MEMBERS, DockerCluster
from tests.commands import CommandFailed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def secured(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    """Three members, three log servers, and a certificate for each."""
    with DockerCluster(tmp_path_factory.mktemp("secured"), image, tls=True) as cluster:
        yield cluster


def test_clients_with_a_certificate_commit_everywhere(secured: DockerCluster) -> None:
    for name in MEMBERS:
        with secured.client(name) as client:
            with client.transaction() as transaction:
                transaction.put(name.encode(), b"1")
    with secured.client("m1", consistency=Consistency.BEFORE) as client:
        found = client.run(lambda transaction: transaction.get_many([b"m1", b"m2", b"m3"]))
        status = client.status().observer
    assert set(found.values()) == {b"1"}
    assert (status.log_durable, status.log_replicas) == (True, 3)


def test_a_member_that_was_killed_comes_back(secured: DockerCluster) -> None:
    secured.kill("m2")
    secured.start_containers("m2")
    secured.wait_online()
    with secured.client("m2") as client:
        assert client.status().observer.state == group_pb2.MEMBER_STATE_ONLINE


def test_the_containers_find_themselves_healthy(secured: DockerCluster) -> None:
    for name in ("m1", "log1"):
        address = "127.0.0.1:7101" if name == "m1" else "https://127.0.0.1:8222"
        assert secured.wait_for(
            f"{name} healthy", partial(finds_itself_healthy, secured, name, address)
        )


def finds_itself_healthy(cluster: DockerCluster, name: str, address: str) -> bool:
    """Whether a probe in a container gets an answer: it waits for two seconds only."""
    with suppress(CommandFailed):
        return "SERVING" in cluster.execute(name, "groupcert", "health", address)
    return False


@pytest.mark.parametrize("shown", ["nothing", "a stranger's"])
def test_others_stay_outside(secured: DockerCluster, shown: str, tmp_path: Path) -> None:
    tls = _stranger(tmp_path, secured) if shown == "a stranger's" else None
    assert secured.wait_for(
        "a refusal for want of a certificate", partial(is_kept_out, secured, tls)
    )


def is_kept_out(cluster: DockerCluster, tls: Tls | None) -> bool:
    """Whether a client gets no answer because of its files; on a busy machine, it is for time."""
    with Client(cluster.address("m1"), timeout_ms=2_000, tls=tls) as client:
        with pytest.raises(NotServing) as caught:
            client.status()
    return "TLS" in str(caught.value) or "certificate" in str(caught.value)


def test_a_log_server_takes_nobody_without_a_certificate(secured: DockerCluster) -> None:
    with socket.create_connection((secured.ip("log1"), LOG_PORT), timeout=60) as connection:
        greeting = connection.recv(4_096)
        assert b'"tls_required":true' in greeting
        assert b'"tls_verify":true' in greeting
        connection.sendall(b'CONNECT {"user":"member","pass":"test-member"}\r\nPING\r\n')
        assert b"PONG" not in _rest_of(connection)


def _rest_of(connection: socket.socket) -> bytes:
    """What comes until the other side hangs up."""
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(4_096):
            received += part
    return received


def _stranger(folder: Path, secured: DockerCluster) -> Tls:
    """A certificate of another authority; the members' own is trusted."""
    make_authority(folder)
    make_certificate(folder, "stranger")
    assert secured.credentials.tls is not None
    return Tls(
        authority=secured.credentials.tls.authority,
        certificate=folder / "stranger.pem",
        key=folder / "stranger.key",
    )
