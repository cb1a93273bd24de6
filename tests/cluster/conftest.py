"""Clusters in containers for tests; where no Docker runs, the tests are skipped and say why."""

import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster import engine
from tests.cluster.docker_cluster import DockerCluster
from tests.cluster.faults import heal_all
from tests.cluster.image import ensure_image
from tests.commands import CommandFailed

SECONDS_MAX = 1200
"""Of a test and what it is the first to need: on a new machine the image is made, and its base."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Gives the tests that may make an image the time for it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def image() -> str:
    """The image of this tree."""
    if lacking := engine.missing():
        # Where containers are what is to be tested, as in continuous integration.
        if os.environ.get("REQUIRE_DOCKER") == "1":
            pytest.fail(f"no containers: {lacking}")
        pytest.skip(f"no containers: {lacking}")
    try:
        return ensure_image()
    except CommandFailed as error:
        if os.environ.get("REQUIRE_DOCKER") == "1":
            raise
        pytest.skip(f"no image: {error}")


@pytest.fixture(scope="module")
def running_cluster(
    image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DockerCluster]:
    """A cluster that can be broken in every way, for a module's tests."""
    with DockerCluster(
        tmp_path_factory.mktemp("cluster"),
        image,
        settings={
            "certification_log": "/var/lib/groupcert/certification-log",
            "stable_set_period_ms": 200,
        },
        small_disks={"m3": 256 << 20},
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: DockerCluster) -> Iterator[DockerCluster]:
    """The same, whole before and after each test."""
    yield running_cluster
    heal_all(running_cluster)
    running_cluster.wait_online()
    running_cluster.wait_healthy()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what the containers said last to the report of a test that failed."""
    report = yield
    clusters = [each for each in item.funcargs.values() if isinstance(each, DockerCluster)]
    if report.failed and clusters:
        for name in clusters[0].names:
            report.sections.append((f"the last of {name}", clusters[0].output(name)))
    return report
