"""Members whose clocks step by an hour: nothing that a member does depends on the time of day."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from groupcert import Client
from tests.cluster.docker_cluster import MEMBERS, DockerCluster
from tests.cluster.faults import ClockStep, heal_all

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

HOUR = 3_600


@pytest.fixture(scope="module")
def clock_cluster(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    """A cluster whose members' clocks can be stepped."""
    folder = tmp_path_factory.mktemp("cluster")
    with DockerCluster(folder, image, clock_steps=True) as cluster:
        yield cluster


def clock_error_seconds(cluster: DockerCluster, member: str) -> float:
    """By how much the clock of a member was off when it said something for the last time."""
    said = json.loads(cluster.output(member, lines=1))
    at = datetime.fromisoformat(said["timestamp"])
    stopped = datetime.fromisoformat(cluster.inspect(member)["State"]["FinishedAt"][:26] + "Z")
    return (at - stopped.astimezone(UTC)).total_seconds()


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_a_member_runs_on_through_a_step_of_its_clock(
    clock_cluster: DockerCluster, seconds: int
) -> None:
    with Client(clock_cluster.address("m2"), timeout_ms=60_000) as client:
        for number in range(20):
            if number == 5:
                ClockStep(clock_cluster, "m2", seconds).inject()
                time.sleep(2)  # Not before then does the member look again.
            with client.transaction() as transaction:
                transaction.put(b"clock", b"%d" % number)
        assert client.run(lambda transaction: transaction.get(b"clock")) == b"19"
    clock_cluster.stop_containers("m2")
    assert abs(clock_error_seconds(clock_cluster, "m2") - seconds) < 60
    heal_all(clock_cluster)
    clock_cluster.wait_online(MEMBERS)
