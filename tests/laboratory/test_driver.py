"""Real members, real clients that give up: what they do not know of is no finding.

Clients that wait are at work in `tests/checker`, whose processes are killed.
"""

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
from tests.laboratory.history import Outcome
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
    file = tmp_path / "history.jsonl"
    run.history.save(file)
    findings = check_history(run.history)
    print(report(run.history, findings))  # noqa: T201  # shown if the test fails, or by `pytest -s`
    assert not findings, f"see {file}"
    assert all(final.applied for final in run.history.finals), "no history to compare"
    for workload in run.history.workloads:
        committed = (each.is_committed for each in run.history.of(workload))
        assert any(committed), workload.name
