"""What the tests of one run share: a log server, and a group of real members."""

from collections.abc import Iterator

import pytest

from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.total_order.embedded_server import LogServer
from groupcert.members.total_order.etcd import EtcdOptions
from groupcert.members.total_order.jetstream import JetStreamOptions
from tests.log_servers import EtcdServers, wiped
from tests.stores import store

__all__ = ["store"]


@pytest.fixture(scope="session")
def log_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogServer]:
    """A running log server."""
    with LogServer(tmp_path_factory.mktemp("log-server")) as server:
        yield server


@pytest.fixture
def jetstream_options(log_server: LogServer, request: pytest.FixtureRequest) -> JetStreamOptions:
    """Options for a group that no other test uses."""
    group = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return JetStreamOptions(
        servers=(log_server.address,),
        monitors=(log_server.monitor,),
        group=group,
        connect_ms_max=60_000,
    )


@pytest.fixture
async def etcd_options(etcd: EtcdServers) -> EtcdOptions:
    """Options for the group of this test, to which the servers belong until the next one."""
    return await wiped(etcd)


@pytest.fixture(scope="session")
def local_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Two members as processes, with a log server of their own; they stay up."""
    folder = tmp_path_factory.mktemp("local-group")
    with LocalGroup(folder, members=2, certification_logs=folder / "logs") as group:
        yield group


@pytest.fixture
def member_address(local_group: LocalGroup) -> str:
    """A member of the shared group; tests keep to keys of their own."""
    return local_group.addresses["m1"]
