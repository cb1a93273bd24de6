"""What `status --applier` prints: every field of the message that says something."""

import io
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from rich.console import Console

from groupcert.certifier.errors import NotServing
from groupcert.members.commands.applier_view import render, show_applier
from groupcert.members.services.applier import ApplierService
from groupcert.v1 import applier_pb2, applier_pb2_grpc

STATUS = applier_pb2.GetApplierStatusResponse(
    coordinator=applier_pb2.Coordinator(
        channel="r1",
        source="10.0.0.1:7101",
        scheme="database",
        consistency="most-of-the-time",
        state="running",
        waits_for="a database or table is with another worker: shop with worker 1",
        pending_transactions=12,
        pending_bytes=3_456,
        assigned_transactions=4,
        committed_transactions=789,
        committed_groups=78,
        skipped_transactions=5,
        parallelism_mean=2.345,
        gtid_executed="g:1-9:11",
        low_water_mark_gtid="g:9",
        low_water_mark_file=3,
        low_water_mark_sequence_number=17,
        has_gaps=True,
        lag_seconds=1.26,
        behind_transactions=21,
        is_sequential=True,
        holds=[applier_pb2.CauseCount(cause="no idle worker", count=40)],
        fallbacks=[applier_pb2.CauseCount(cause="it runs alone", count=2)],
        domain_gtids={3: "g:8"},
        error="",
        last_recovery="9 transactions were executed before",
    ),
    workers=[
        applier_pb2.ApplierWorker(
            worker=1,
            state="retrying",
            gtid="g:11",
            waits_for="what failed to be possible",
            executed_transactions=400,
            retried_transactions=6,
        )
    ],
)
Observe = Callable[[], applier_pb2.GetApplierStatusResponse | None]


def text_of(status: applier_pb2.GetApplierStatusResponse) -> str:
    """What people see, on a wide terminal."""
    console = Console(file=io.StringIO(), width=160)
    with console.capture() as capture:
        console.print(render(status))
    return capture.get()


@contextmanager
def serving(observe: Observe) -> Iterator[str]:
    """Something that answers for an applier; where."""
    server = grpc.server(ThreadPoolExecutor(1))
    applier_pb2_grpc.add_ApplierServiceServicer_to_server(ApplierService(observe), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_the_tables_have_every_field_that_says_something() -> None:
    text = text_of(STATUS)
    for value in (
        *("applier of r1, running", "10.0.0.1:7101", "database (most-of-the-time consistency)"),
        *("shop with worker 1", "sequential", "1.3 s, 21 transactions"),
        *("g:9 at 3:17, gaps above it", "g:1-9:11", "12 transactions, 3456 bytes"),
        *("789 in 78 groups", "2.35", "no idle worker 40", "it runs alone 2", "3: g:8"),
        *("9 transactions were executed before", "retrying", "g:11", "400"),
    ):
        assert value in text


def test_no_word_is_broken_at_80_columns() -> None:
    source = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    worker = applier_pb2.ApplierWorker(
        worker=1, state="executing", waits_for="previous transactions", gtid=f"{source}:123456"
    )
    status = applier_pb2.GetApplierStatusResponse(workers=[worker])
    status.coordinator.gtid_executed = f"{source}:1-123456,{source[::-1]}:1-7"
    console = Console(width=80)
    with console.capture() as capture:
        console.print(render(status))
    words = capture.get().replace(",", " ").split()
    assert {f"{source}:123456", f"{source}:1-123456", f"{source[::-1]}:1-7"} <= set(words)
    assert "executing" in words


def test_what_there_is_none_of_has_no_row() -> None:
    text = text_of(applier_pb2.GetApplierStatusResponse())
    for name in ("held by", "sequential because of", "domains", "recovery", "error"):
        assert name not in text
    assert "parallel" in text


@pytest.mark.parametrize(("state", "code"), [("running", 0), ("failed", 1), ("stopped", 1)])
def test_the_document_has_every_field_and_the_code_says_whether_it_runs(
    capsys: pytest.CaptureFixture[str], state: str, code: int
) -> None:
    status = applier_pb2.GetApplierStatusResponse()
    status.CopyFrom(STATUS)
    status.coordinator.state = state
    with serving(lambda: status) as address:
        assert show_applier(address, as_json=True, watch=False, period_ms=100) == code
    document = json.loads(capsys.readouterr().out)
    names = {field.name for field in applier_pb2.Coordinator.DESCRIPTOR.fields}
    assert document["coordinator"].keys() == names
    assert document["coordinator"]["error"] == "", "what is empty is there, too"
    assert document["workers"][0]["retried_transactions"] == "6"


def test_the_tables_are_printed_where_no_document_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(lambda: STATUS) as address:
        assert show_applier(address, as_json=False, watch=False, period_ms=100) == 0
    assert "applier of r1, running" in capsys.readouterr().out


def test_an_applier_that_starts_does_not_answer_yet() -> None:
    with serving(lambda: None) as address, pytest.raises(NotServing, match="is starting"):
        show_applier(address, as_json=True, watch=False, period_ms=100)


def test_where_nobody_answers_that_is_said() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(NotServing, match=address):
            show_applier(address, as_json=True, watch=False, period_ms=100)
