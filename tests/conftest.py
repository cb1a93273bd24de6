"""What all tests share: the option that renews scripts, and real SQL servers."""

import logging
import os
import signal
from collections.abc import Iterator
from zlib import crc32

import pytest
import structlog
from hypothesis import settings
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests import servers
from tests.log_servers import EtcdServers, running_etcd

settings.register_profile("groupcert", deadline=None)  # How long an example takes proves nothing.
settings.load_profile("groupcert")


pytest_plugins = ["tests.turns", "tests.durations", "tests.browser"]
CONTAINERS = "tests/cluster"
"""Its tests share networks and images."""
MARKERS_OF_FIXTURES = {
    "spark": ("spark",),
    "log_server": ("nats",),
    "etcd": ("etcd",),
    "group": ("nats", "cluster"),
    "local_group": ("nats", "cluster"),
    "image": ("cluster",),
    "database": ("database",),
    "postgresql": ("database",),
    "target_server": ("database",),
    "mariadb": ("database",),
}
"""What a fixture starts: a test that uses it gets these markers, so that no quick run has it."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by the fixtures that they use, before a run selects tests by their markers."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            for marker in MARKERS_OF_FIXTURES.get(fixture, ()):
                item.add_marker(marker)


class _Files(LoadFileScheduling):  # type: ignore[misc]
    """Gives each worker a file after the other, and all of those with containers to one."""

    def _split_scope(self, nodeid: str) -> str:
        return CONTAINERS if nodeid.startswith(CONTAINERS) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Schedules `--dist loadfile`."""
    return _Files(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure() -> None:
    """Has Ctrl-C reach what tests start: a shell has it ignored in what it puts into the
    background, and all processes below inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--rewrite`."""
    parser.addoption(
        "--rewrite", action="store_true", help="write the answers of tests/testdata scripts again"
    )


@pytest.fixture(autouse=True)
def default_logs() -> Iterator[None]:
    """A verb that ran in this process has set logs up for its own standard error, which is closed
    when its test ends.
    """
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


@pytest.fixture(autouse=True)
def default_umask() -> Iterator[None]:
    """A verb that ran in this process has made its files its own alone."""
    umask = os.umask(0o022)
    yield
    os.umask(umask)


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether scripts are renewed in place of compared."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.PostgreSqlServer]:
    """A running PostgreSQL."""
    with (
        servers.where_installed(),
        servers.PostgreSqlServer(tmp_path_factory.mktemp("postgresql")) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.MariaDbServer]:
    """A running MariaDB, without a binary log."""
    with (
        servers.where_installed(),
        servers.MariaDbServer(tmp_path_factory.mktemp("mariadb")) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    """A running etcd, of one server."""
    with running_etcd(tmp_path_factory.mktemp("etcd"), 1) as running:
        yield running


@pytest.fixture
def postgresql_dsn(
    postgresql: servers.PostgreSqlServer, request: pytest.FixtureRequest
) -> Iterator[str]:
    """A database in it that no other test uses."""
    with servers.postgresql_database(postgresql, _name_of(request)) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def target_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.PostgreSqlServer]:
    """A running PostgreSQL that takes prepared transactions."""
    folder = tmp_path_factory.mktemp("target")
    with servers.where_installed(), servers.PostgreSqlServer(folder, servers.PREPARING) as server:
        yield server


@pytest.fixture
def target_dsn(
    target_server: servers.PostgreSqlServer, request: pytest.FixtureRequest
) -> Iterator[str]:
    """A database in it that no other test uses."""
    with servers.postgresql_database(target_server, _name_of(request)) as dsn:
        yield dsn


@pytest.fixture
def mariadb_url(mariadb: servers.MariaDbServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database in it that no other test uses."""
    with servers.mariadb_database(mariadb, _name_of(request)) as url:
        yield url


def _name_of(request: pytest.FixtureRequest) -> str:
    return f"test_{crc32(request.node.nodeid.encode()):08x}"
