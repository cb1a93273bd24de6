"""What `status --applier` prints: every field of the message that says something."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
from rich.console import Console

from groupcert.members.commands.status_views import applier_table
from groupcert.members.services.applier_service import ApplierService
from groupcert.v1 import applier_pb2, applier_pb2_grpc
from tests.datadriven import run_script
from tests.transcripts import FOLDER, Terminal

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
SCRIPTS = sorted((FOLDER / "applier").glob("*.txt"))
Observe = Callable[[], applier_pb2.GetApplierStatusResponse | None]


@contextmanager
def serving(observe: Observe) -> Iterator[str]:
    """Something that answers for an applier; where."""
    server = grpc.server(ThreadPoolExecutor(1))
    applier_pb2_grpc.add_ApplierServiceServicer_to_server(ApplierService(observe), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_no_word_is_broken_at_80_columns() -> None:
    source = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    worker = applier_pb2.ApplierWorker(
        worker=1, state="executing", waits_for="previous transactions", gtid=f"{source}:123456"
    )
    status = applier_pb2.GetApplierStatusResponse(workers=[worker])
    status.coordinator.gtid_executed = f"{source}:1-123456,{source[::-1]}:1-7"
    console = Console(width=80)
    with console.capture() as capture:
        console.print(applier_table(status))
    words = capture.get().replace(",", " ").split()
    assert {f"{source}:123456", f"{source}:1-123456", f"{source[::-1]}:1-7"} <= set(words)
    assert "executing" in words


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_applier_is_shown_as_the_transcript_says(
    path: Path,
    rewrite: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = {"running": STATUS, "starting": None, "empty": applier_pb2.GetApplierStatusResponse()}
    for state in ("failed", "stopped"):
        answers[state] = status = applier_pb2.GetApplierStatusResponse()
        assert status is not None
        status.coordinator.state = state
    with ExitStack() as stack:
        names = {name: stack.enter_context(serving(partial(answers.get, name))) for name in answers}
        terminal = Terminal(tmp_path, monkeypatch, capsys, names)
        run_script(path, terminal.handlers, rewrite=rewrite)


def test_the_document_has_every_field() -> None:
    script = (FOLDER / "applier" / "status.txt").read_text()
    (document,) = (json.loads(line) for line in script.splitlines() if line.startswith('{"coord'))
    fields = {field.name for field in applier_pb2.Coordinator.DESCRIPTOR.fields}
    assert document["coordinator"].keys() == fields
