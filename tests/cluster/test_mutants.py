"""Members that are wrong on purpose, in containers: the checkers find each of them.

A workload runs beside what brings a mutant to light; no fault but that is injected.
"""

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from groupcert import Client, Transaction
from tests.cluster.docker_cluster import DockerCluster
from tests.cluster.nemesis import SETTINGS
from tests.laboratory.check import check_history, report
from tests.laboratory.driver import WorkloadRun
from tests.laboratory.group_clients import TIMEOUT_MS, Members
from tests.laboratory.history import Workload
from tests.laboratory.plans import ALL_WORKLOADS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMMITS = 400
SECONDS_MAX = 240.0
LATE_SECONDS_MAX = 1.0
COLLECTION_SECONDS = 0.1
"""Several periods of a group that collects every 20 ms."""


class LateClient(Client):
    """Its transactions commit late."""

    def transaction(self, **options: Any) -> Transaction:
        """Begins one of them."""
        return LateTransaction(super().transaction(**options).asynchronous)


class LateTransaction(Transaction):
    """One at a time commits late: two others have committed since its snapshot, and the group has
    collected what it may. Nobody else commits in the meantime.
    """

    _turn = threading.Lock()
    _others = 0

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        if error_type is None:
            self.commit()
        else:
            super().__exit__(error_type, *error)

    def commit(self) -> None:
        """Commits, in turns."""
        turn = LateTransaction
        if turn._turn.acquire(blocking=False):
            try:
                turn._others = 0
                wait_for(lambda: turn._others >= 2, LATE_SECONDS_MAX)
                time.sleep(COLLECTION_SECONDS)
                return super().commit()
            finally:
                turn._turn.release()
        wait_for(lambda: turn._others < 2 or not turn._turn.locked(), LATE_SECONDS_MAX)
        super().commit()
        turn._others += 1


def wait_for(condition: Callable[[], bool], seconds_max: float) -> None:
    deadline = time.monotonic() + seconds_max
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)


class Mutant(NamedTuple):
    """What is wrong, what may be found of it, and what brings it to light."""

    name: str
    codes: set[str]
    client: type[Client] = Client
    clients: int = 8
    settings: Mapping[str, object] = MappingProxyType({})
    workloads: Sequence[Workload] = ALL_WORKLOADS
    when: str = "nightly"
    """The marker that says when it is run: the simulation finds them, too."""


UPDATES_LOST = {"lost-update", "bank-balance", "bank-total", "lost-append", "set-lost"}
MUTANTS = (
    Mutant("ignore-last-item", UPDATES_LOST, when="in_turns"),
    Mutant(
        "collect-one-too-early",
        UPDATES_LOST,
        client=LateClient,
        clients=4,
        settings={"stable_set_period_ms": 20},
        workloads=(Workload("bank"),),
    ),
    Mutant("acknowledge-before-the-log", {"acknowledged-lost", "version-differs"}),
    # With a binary log a member ends itself, by an assertion, before anybody can see it.
    Mutant(
        "skip-commit-order",
        {"relay-order", "relay-overlap", "relay-skipped", "snapshot-version"},
        settings={"binary_log": False},
    ),
)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, id=each.name, marks=getattr(pytest.mark, each.when)) for each in MUTANTS],
)
def test_a_mutant_is_found(image: str, tmp_path: Path, mutant: Mutant) -> None:
    settings = {**SETTINGS, **mutant.settings}
    with DockerCluster(tmp_path, image, settings=settings, mutant=mutant.name) as cluster:
        members = Members(
            cluster.addresses, lambda addresses: mutant.client(addresses, timeout_ms=TIMEOUT_MS)
        )
        workloads = WorkloadRun(
            members.session, seed=1, workloads=mutant.workloads, clients=mutant.clients
        )
        with workloads as run:
            deadline = time.monotonic() + SECONDS_MAX
            while run.acknowledged < COMMITS and run.is_running:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
        run.history.finals = members.finals(run.history)
    findings = check_history(run.history)
    sys.stderr.write(f"\n{mutant.name}\n{report(run.history, findings)}")
    assert mutant.codes & {finding.code for finding in findings}
