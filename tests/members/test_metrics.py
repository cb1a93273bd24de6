"""Metrics over HTTP: those of the table in members/README.md, with an applier's numbers."""

import re
import socket
import urllib.request
from pathlib import Path

import pytest

from certifier.errors import PortTaken
from groupcert.v1 import applier_pb2
from members.applier_status import applier_status
from members.loopback import HOST, free_port
from members.metrics import serve_metrics
from tests.members.appliers import running_applier, transaction

README = Path(__file__).parents[2] / "members" / "README.md"


def scrape(status: applier_pb2.GetApplierStatusResponse | None) -> str:
    """What Prometheus gets."""
    address = f"{HOST}:{free_port()}"
    stop = serve_metrics(address, lambda: status)
    try:
        with urllib.request.urlopen(f"http://{address}/metrics") as response:
            text: str = response.read().decode()
            return text
    finally:
        stop()


def test_every_metric_is_in_the_readme_and_has_its_number(tmp_path: Path) -> None:
    with running_applier(tmp_path) as applier:
        applier.append([transaction(number) for number in range(1, 31)])
        assert applier.drain(20)
        status = applier_status(
            applier.status(),
            channel="r1",
            source="",
            scheme="jobs barrier",
            consistency="any-time",
            lag_seconds=2.5,
            behind_transactions=3,
        )
    text = scrape(status)
    told = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    listed = set(re.findall(r"^\| `(groupcert_applier_\w+)` \|", README.read_text(), re.MULTILINE))
    assert told == listed
    assert all(re.fullmatch(r"groupcert_applier_[a-z_]+", name) for name in told)
    for line in (
        "groupcert_applier_committed_transactions_total 30.0",
        "groupcert_applier_lag_seconds 2.5",
        "groupcert_applier_behind_transactions 3.0",
        "groupcert_applier_pending_transactions 0.0",
        "groupcert_applier_running 1.0",
    ):
        assert line in text.splitlines()
    executed = re.findall(
        r'^groupcert_applier_worker_executed_transactions_total\{worker="(\d)"\} (\d+)',
        text,
        re.MULTILINE,
    )
    assert [worker for worker, _ in executed] == ["0", "1"]
    assert sum(int(count) for _, count in executed) == 30
    for one in status.coordinator.holds:
        name = f'groupcert_applier_holds_total{{cause="{one.cause}"}} {float(one.count)}'
        assert name in text.splitlines()


def test_while_there_is_no_applier_there_are_no_metrics() -> None:
    assert scrape(None).strip() == ""


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PortTaken, match=address):
            serve_metrics(address, lambda: None)
