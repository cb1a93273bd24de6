"""`groupcert demo --postgresql` as its users run it: the whole of it, and ended in the middle."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.demo_process import Demo
from tests.integration.waiting import SECONDS_MAX, wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database]

FINE, INTERRUPTED = 0, 130
FLAGS = ("--postgresql",)
LACKING = ("no PostgreSQL server here", "it has no plpython3u")


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    """Kills the demos that a test has not seen ending."""
    started: list[Demo] = []
    yield started
    for demo in started:
        demo.end()


def test_the_document_has_what_the_checks_found(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path, *FLAGS, "--seconds", "6", "--json", lacking=LACKING)
    demos.append(demo)
    output, _ = demo.process.communicate()
    demo.has_said("clients stopped")
    document = json.loads(output)
    assert demo.process.returncode == FINE, demo.words()
    assert document["findings"] == []
    verdicts = ("converged", "invariant_ok", "exactly_once", "stamps_valid")
    assert [document[name] for name in verdicts] == [True] * 4
    assert (document["members"], document["lost"]) == (3, 0)
    assert document["certified"] >= document["acknowledged"] > 0
    assert document["unknown"] >= document["unknown_committed"]
    assert document["retried"] >= document["conflicts"] > 0
    for conflict in document["conflict_examples"]:
        assert conflict["sqlstate"] == "40001"
        assert " was written by " in conflict["detail"]
        assert conflict["hint"].startswith("Run the transaction again")
    assert document["conflict_examples"]
    assert document["killed"]["server"] == "m2"
    assert document["killed"]["back_seconds"] > 0
    assert list(demo.folder.iterdir()) == [], "its folder is removed"
    assert demo.processes() == []


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "clients transfer money"), (signal.SIGTERM, "starting 3 PostgreSQL servers")],
    ids=["Ctrl-C under load", "SIGTERM while it starts"],
)
def test_one_that_is_ended_leaves_nothing(
    tmp_path: Path, demos: list[Demo], number: signal.Signals, moment: str
) -> None:
    demo = Demo(tmp_path, *FLAGS, "--seconds", "60", lacking=LACKING)
    demos.append(demo)
    wait_for(moment, lambda: demo.has_said(moment))
    demo.process.send_signal(number)
    assert demo.process.wait(SECONDS_MAX) == INTERRUPTED, demo.words()
    assert list(demo.folder.iterdir()) == []
    wait_for("the end of all processes", lambda: not demo.processes())
    assert "Traceback" not in demo.words()
