"""A log server that the tests of one run share; each test has a group of its own."""

from collections.abc import Iterator

import pytest

from members.jetstream import JetStreamOptions
from members.log_server import LogServer


@pytest.fixture(scope="session")
def log_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogServer]:
    """A running log server."""
    server = LogServer(tmp_path_factory.mktemp("log-server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def jetstream_options(log_server: LogServer, request: pytest.FixtureRequest) -> JetStreamOptions:
    """Options for a group that no other test uses."""
    group = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
    return JetStreamOptions(
        servers=(log_server.address,),
        monitors=(log_server.monitor,),
        group=group,
        connect_ms_max=5_000,
    )
