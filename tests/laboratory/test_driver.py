"""Real members, real clients: a run without faults has no findings, nor has one with a crash."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from groupcert import Client
from groupcert.members.demo.local_group import LocalGroup
from tests.integration.conftest import SETTINGS
from tests.integration.waiting import wait_for
from tests.laboratory.check import check_history, report
from tests.laboratory.driver import WorkloadRun
from tests.laboratory.group_clients import Members
from tests.laboratory.history import History, Outcome
from tests.laboratory.plans import workloads_of

pytestmark = pytest.mark.slow

GIVE_UP_MS = 400
COMMITS = 300
"""Acknowledged before, between and after what a test breaks."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Three members as processes."""
    folder = tmp_path_factory.mktemp("group")
    with LocalGroup(folder, settings=SETTINGS, certification_logs=folder / "logs") as group:
        yield group


def assert_no_findings(history: History, folder: Path) -> None:
    """Checks the run as it was saved, and says how it went."""
    history.save(folder / "history.jsonl")
    findings = check_history(history)
    print(report(history, findings))  # noqa: T201  # shown if the test fails, or by `pytest -s`
    assert not findings, f"see {folder / 'history.jsonl'}"
    assert all(final.applied for final in history.finals), "no history to compare"
    for workload in history.workloads:
        assert any(operation.is_committed for operation in history.of(workload)), workload.name


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", [1])
def test_a_run_without_faults_has_no_findings(group: LocalGroup, tmp_path: Path, seed: int) -> None:
    members = Members(group.addresses)
    with WorkloadRun(members.session, seed=seed, workloads=workloads_of("quiet")) as run:
        run.wait_for_commits(5 * COMMITS)
    run.history.finals = members.finals(run.history)
    assert_no_findings(run.history, tmp_path)


def test_clients_that_give_up_early_leave_unknown_outcomes_and_no_findings(
    group: LocalGroup, tmp_path: Path
) -> None:
    def connect(addresses: Sequence[str]) -> Client:
        return Client(addresses, timeout_ms=GIVE_UP_MS)

    members = Members(group.addresses, connect)
    with WorkloadRun(members.session, seed=3, workloads=workloads_of("unknown")) as run:
        run.wait_for_commits(COMMITS)
        run.note_fault("kill the log server")
        group.log_server.kill()
        wait_for("unknown outcomes", lambda: run.outcomes(Outcome.UNKNOWN))
        run.note_fault("start the log server")
        group.log_server.start()
        run.wait_for_commits(COMMITS)
    run.history.finals = members.finals(run.history)
    assert_no_findings(run.history, tmp_path)


@pytest.mark.in_turns
def test_a_run_with_a_member_killed_and_started_again_has_no_findings(
    group: LocalGroup, tmp_path: Path
) -> None:
    name = random.Random(2).choice(group.names)
    members = Members(group.addresses)
    with WorkloadRun(members.session, seed=2, workloads=workloads_of("killed")) as run:
        run.wait_for_commits(COMMITS)
        run.note_fault(f"kill {name}")
        group.kill(name)
        run.wait_for_commits(COMMITS)
        run.note_fault(f"start {name}")
        group.start_member(name)
        group.wait_online()
        run.wait_for_commits(COMMITS)
    run.history.finals = members.finals(run.history)
    assert_no_findings(run.history, tmp_path)
