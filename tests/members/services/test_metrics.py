"""Metrics over HTTP: those of the tables in members/services/README.md, with their numbers."""

import inspect
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.registry import Collector

from groupcert.certifier.errors import PortTaken
from groupcert.members.console.paths import serve_metrics
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.services import group_status
from groupcert.members.services.metrics import StatusCollector
from groupcert.members.wire.applier_status import applier_status
from groupcert.v1 import applier_pb2, group_pb2
from groupcert.v1.group_pb2 import (
    GroupStatus,
    LogServerStatus,
    LogStatus,
    MemberStatus,
    VerdictCounts,
    ViewMember,
)
from groupcert.v1.metric_pb2 import metric
from tests.members.appliers import running_applier, transaction

README = Path(__file__).parents[3] / "members" / "services" / "README.md"


def scrape(status: applier_pb2.GetApplierStatusResponse | None) -> str:
    """What Prometheus gets of an applier."""
    return told_by(StatusCollector(lambda: status))


def told_by(collector: Collector) -> str:
    """What Prometheus gets."""
    address = f"{HOST}:{free_port()}"
    stop = serve_metrics(address, collector)
    try:
        with urllib.request.urlopen(f"http://{address}/metrics") as response:
            text: str = response.read().decode()
            return text
    finally:
        stop()


def listed(heading: str) -> set[str]:
    """The metrics that the README lists under a heading."""
    section = README.read_text().partition(f"\n{heading}\n")[2].partition("\n##")[0]
    rows = re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", " ".join(rows)))


def test_every_metric_of_a_member_is_filled() -> None:
    told = [
        field.name
        for field in MemberStatus.DESCRIPTOR.fields
        if field.GetOptions().Extensions[metric].name
    ]
    source = inspect.getsource(group_status)
    assert told
    assert [name for name in told if not re.search(rf'\b{name}=|"{name}":', source)] == []


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
    assert told == listed("## Metrics of an applier")
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


def test_every_metric_of_a_member_is_in_the_readme_and_has_its_number() -> None:
    status = GroupStatus(view_id=7, members=[ViewMember(name="m1"), ViewMember(name="m2")])
    status.departed.add(name="m3")
    status.observer.MergeFrom(
        MemberStatus(
            state=group_pb2.MEMBER_STATE_FENCED,
            committed_version=12,
            transactions_conflict=8,
            run_verdicts=VerdictCounts(conflict=3),
            log=LogStatus(
                leader="n1",
                servers=[
                    LogServerStatus(name="n1", state=group_pb2.LOG_SERVER_STATE_CURRENT),
                    LogServerStatus(name="n2", state=group_pb2.LOG_SERVER_STATE_SILENT),
                ],
                acknowledged_ms=250,
                full="insufficient resources (10023)",
                bytes=900,
                bytes_max=1_000,
            ),
            log_unacknowledged_ms=1_500,
            skipped_messages=4,
            log_durable=True,
            certification_log_waiting_rows=9,
            certification_log_waiting_bytes=700,
            certification_log_waiting_bytes_max=1_000,
            certification_log_error="No space left on device",
        )
    )
    text = told_by(StatusCollector(lambda: status))
    told = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    assert told == listed("## Metrics")
    assert all(re.fullmatch(r"groupcert_[a-z_]+", name) for name in told)
    assert set(text.splitlines()) >= {
        "groupcert_group_views_total 7.0",
        "groupcert_group_view_members 2.0",
        'groupcert_member_state{state="FENCED"} 1.0',
        'groupcert_member_state{state="ONLINE"} 0.0',
        "groupcert_member_committed_version 12.0",
        'groupcert_certification_transactions_total{verdict="conflict"} 3.0',
        "groupcert_log_unacknowledged_seconds 1.5",
        "groupcert_log_skipped_messages_total 4.0",
        "groupcert_log_durable 1.0",
        "groupcert_log_bytes 900.0",
        "groupcert_log_bytes_max 1000.0",
        'groupcert_problems{kind="log_full"} 1.0',
        "groupcert_log_has_leader 1.0",
        "groupcert_log_servers_current 1.0",
        "groupcert_log_acknowledged_seconds 0.25",
        "groupcert_group_departed_members 1.0",
        'groupcert_problems{kind="log_server"} 1.0',
        'groupcert_problems{kind="member_departed"} 1.0',
        'groupcert_problems{kind="log_leader"} 0.0',
        "groupcert_certification_log_waiting_rows 9.0",
        "groupcert_certification_log_waiting_bytes 700.0",
        "groupcert_certification_log_waiting_bytes_max 1000.0",
        "groupcert_certification_log_failing 1.0",
    }


def test_while_there_is_no_member_there_are_no_metrics() -> None:
    assert told_by(StatusCollector(lambda: None)).strip() == ""


def test_while_there_is_no_applier_there_are_no_metrics() -> None:
    assert scrape(None).strip() == ""


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PortTaken, match=address):
            serve_metrics(address)
