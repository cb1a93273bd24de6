"""Members that are wrong on purpose, in containers: the checkers find each of them.

A workload runs beside what brings a mutant to light; no fault but that is injected.
"""

import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from members.client import Client, Outcome
from tests.cluster.docker_cluster import DockerCluster
from tests.cluster.nemesis import SETTINGS
from tests.workloads.check import check_history, report
from tests.workloads.driver import TIMEOUT_MS, WorkloadRun

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

COMMITS = 400
SECONDS_MAX = 60.0
HESITATION_SECONDS = 0.6


class HesitantClient(Client):
    """Waits before it commits, so that its snapshot is the oldest one of the group for a while."""

    def _commit(self, *request: Any) -> Outcome:
        time.sleep(random.uniform(0, HESITATION_SECONDS))
        return super()._commit(*request)


class Mutant(NamedTuple):
    """What is wrong, what may be found of it, and what brings it to light."""

    name: str
    codes: set[str]
    client: type[Client] = Client
    clients: int = 8
    settings: Mapping[str, object] = MappingProxyType({})
    commits: int = COMMITS


UPDATES_LOST = {"lost-update", "bank-balance", "bank-total", "lost-append", "set-lost"}
MUTANTS = (
    Mutant("ignore-last-item", UPDATES_LOST),
    Mutant(
        "collect-one-too-early",
        UPDATES_LOST,
        client=HesitantClient,
        clients=24,
        settings={"stable_set_period_ms": 20},
        commits=2_000,
    ),
    Mutant("acknowledge-before-the-log", {"acknowledged-lost", "version-differs"}),
    # With a binary log a member ends itself, by an assertion, before anybody can see it.
    Mutant(
        "skip-commit-order",
        {"relay-order", "relay-overlap", "snapshot-version"},
        settings={"binary_log": False},
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(image: str, tmp_path: Path, mutant: Mutant) -> None:
    settings = {**SETTINGS, **mutant.settings}
    with DockerCluster(tmp_path, image, settings=settings, mutant=mutant.name) as cluster:
        workloads = WorkloadRun(
            cluster.addresses,
            seed=1,
            clients=mutant.clients,
            connect=lambda addresses: mutant.client(addresses, timeout_ms=TIMEOUT_MS),
        )
        with workloads as run:
            deadline = time.monotonic() + SECONDS_MAX
            while run.acknowledged < mutant.commits and run.is_running:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
        run.read_finals()
    findings = check_history(run.history)
    sys.stderr.write(f"\n{mutant.name}\n{report(run.history, findings)}")
    assert mutant.codes & {finding.code for finding in findings}
