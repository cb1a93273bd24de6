"""Every fault beside every workload: nothing acknowledged is lost, and all members are equal.

What each run does is in `scenarios.py`. By default faults of a kind share one run, a kind a day;
with NIGHTLY=1 every scenario runs by itself, longer, with several seeds.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest

from tests.cluster.docker_cluster import DockerCluster
from tests.cluster.nemesis import new_cluster, run_nemesis
from tests.cluster.scenarios import SCENARIOS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NIGHTLY = os.environ.get("NIGHTLY") == "1"
GROUPS: dict[str, Sequence[str]] = {
    "members": ("kill-member", "pause-member", "partition-member"),
    "log": ("kill-log-server", "pause-log-leader", "partition-log-leader"),
    "many": ("kill-minority", "partition-halves", "kill-everything"),
    "network": ("delay", "loss", "partition-minority"),
    "disks": ("disk-full", "damage-rocksdb", "damage-log-server"),
    "operators": ("churn", "rolling-restart"),
}
TURNS: list[Sequence[str]] = [[each] for each in SCENARIOS] if NIGHTLY else list(GROUPS.values())
TODAY = datetime.now(UTC).toordinal() % len(GROUPS)
"""Each day has one of the groups; all that is not today's is for the night."""
SEEDS = range(1, 4) if NIGHTLY else (1,)
SECONDS = 40.0 if NIGHTLY else 0.0
"""Each fault of a turn comes once, however long that takes."""


@pytest.fixture(scope="module")
def steady_cluster(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    """A cluster for all runs that step no clock."""
    with new_cluster(tmp_path_factory.mktemp("cluster"), image) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def clock_cluster(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    """A cluster whose members' clocks can be stepped."""
    with new_cluster(tmp_path_factory.mktemp("cluster"), image, clock_steps=True) as cluster:
        yield cluster


def is_steady(scenarios: Sequence[str]) -> bool:
    """Whether no clock has to be stepped."""
    return not any(SCENARIOS[name].clock_steps for name in scenarios)


def is_due(number: int) -> bool:
    """Tells whether a turn belongs to a run of today."""
    return NIGHTLY or number == TODAY


def assert_nothing_is_lost(cluster: DockerCluster, scenarios: Sequence[str], seed: int) -> None:
    """Runs it, prints its summary, and has nothing to complain of."""
    run = run_nemesis(cluster, scenarios, seed=seed, seconds=SECONDS)
    sys.stderr.write(f"\n{run}")
    assert not run.is_wrong, str(run)
    assert run.summary.lost == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "scenarios",
    [
        pytest.param(turn, id="+".join(turn), marks=() if is_due(number) else pytest.mark.nightly)
        for number, turn in enumerate(TURNS)
        if is_steady(turn)
    ],
)
def test_nothing_acknowledged_is_lost(
    steady_cluster: DockerCluster, scenarios: Sequence[str], seed: int
) -> None:
    assert_nothing_is_lost(steady_cluster, scenarios, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_when_clocks_step(clock_cluster: DockerCluster, seed: int) -> None:
    assert_nothing_is_lost(clock_cluster, ("clock-steps",), seed)
