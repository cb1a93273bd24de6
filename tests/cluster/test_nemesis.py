"""Every fault beside every workload: nothing acknowledged is lost, and all members are equal.

What each run does is in `scenarios.py`. Faults of a kind share one run, a kind a commit; in
`make nightly` every scenario runs by itself, longer.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests import turns
from tests.cluster.docker_cluster import DockerCluster
from tests.cluster.log_kinds import LogKind
from tests.cluster.nemesis import new_cluster, run_nemesis

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS = (
    ("kill-member", "pause-member", "partition-member"),
    ("kill-log-server", "pause-log-leader", "partition-log-leader"),
    ("kill-minority", "partition-halves", "kill-everything"),
    ("delay", "loss", "partition-minority"),
    ("disk-full", "damage-rocksdb", "damage-log-server"),
    ("churn", "rolling-restart"),
)
DRAWN = GROUPS[turns.drawn(below=len(GROUPS))]


@pytest.fixture(scope="module")
def cluster(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    """One that no other test breaks."""
    with new_cluster(tmp_path_factory.mktemp("cluster"), image) as cluster:
        yield cluster


@pytest.mark.in_turns
def test_nothing_acknowledged_is_lost_with_the_leader_of_an_etcd(
    image: str, tmp_path: Path
) -> None:
    with new_cluster(tmp_path, image, log=LogKind.ETCD) as cluster:
        assert_survives(cluster, ["kill-log-leader"])


@pytest.mark.in_turns
def test_nothing_acknowledged_is_lost_with_the_leader_of_a_stream(cluster: DockerCluster) -> None:
    assert_survives(cluster, ["kill-log-leader"])


def assert_survives(cluster: DockerCluster, scenarios: Sequence[str]) -> None:
    """Each fault comes once, however long that takes."""
    run = run_nemesis(cluster, scenarios, seed=1, seconds=0.0)
    sys.stderr.write(f"\n{run}")
    assert not run.is_wrong, str(run)
    assert run.summary.lost == 0


def test_nothing_acknowledged_is_lost(cluster: DockerCluster) -> None:
    assert_survives(cluster, DRAWN)
