"""What `groupcert status` prints: each member of the view, whether it answers or not; and of an
applier every field that says something.
"""

import json
import sys
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.console import Console

from groupcert.members.commands import cli, status_views
from groupcert.members.commands.status_views import (
    applier_table,
    member_document,
    show_status,
    status_table,
)
from groupcert.members.core.views import FORMAT_VERSION
from groupcert.members.demo.local_group import LocalGroup
from groupcert.v1 import applier_pb2, group_pb2
from tests.datadriven import run_script
from tests.integration.waiting import wait_for
from tests.members.replica_servers import replica_server
from tests.transcripts import FOLDER, Terminal


def rendered(document: dict[str, object], columns: int = 120) -> str:
    """Returns what people see."""
    console = Console(width=columns)
    with console.capture() as capture:
        console.print(status_table(document))
    return capture.get()


def test_a_member_is_shown_by_the_names_of_its_counters() -> None:
    status = group_pb2.MemberStatus(
        state=group_pb2.MEMBER_STATE_RECOVERING,
        log_sequence=9,
        transactions_certified=7,
        workers=[group_pb2.WorkerStatus(worker=1, state="idle", transactions_applied=3)],
    )
    document = member_document(status)
    assert document["state"] == "RECOVERING"
    assert document["position"] == 9
    assert document["certified"] == 7
    assert document["workers"] == [{"worker": 1, "state": "idle", "applied": 3}]


def test_the_table_tells_why_a_member_is_not_there() -> None:
    gone = {"name": "m2", "address": "b:1", "state": "UNREACHABLE", "reason": "it is gone"}
    online = {"name": "m1", "address": "a:1", "reason": "", "certified": 1_234, "state": "ONLINE"}
    log = {
        "leader": "",
        "servers": [{"name": "n1", "state": "CURRENT"}, {"name": "n2", "state": "SILENT"}],
        "acknowledged_ms_ago": 1_234,
        "bytes": 12 << 20,
        "bytes_max": 40 << 30,
    }
    problem = {"kind": "member_unreachable", "name": "m2", "text": "m2 does not answer: it is gone"}
    document = {
        "group": "shop",
        "view_id": 3,
        "view": [{"name": "m2", "without_rows": True}],
        "primary": "m1",
        "format_version": 2,
        "members": [online, gone],
        "log": log,
        "problems": [problem],
    }
    text = rendered(document)
    assert "group shop, view 3, primary m1" in text
    assert "m2 keeps no rows" in text
    assert "1,234" in text
    words = " ".join(text.split())
    assert "log: leader not known; n1 CURRENT, n2 SILENT; it took a message 1,234 ms ago" in words
    assert "; 12.6 MB of 42.9 GB" in words
    assert "m2 does not answer: it is gone" in text
    assert "m1:" not in text


HEADINGS = {"position", "certified", "conflicts", "items", "queued"}


@pytest.mark.parametrize(
    ("state", "certified", "columns"),
    [("ONLINE", 1_234_567, 80), ("UNREACHABLE", 12_345_678_901, 80), ("ONLINE", 7, 60)],
)
def test_no_word_is_broken_at_a_width(state: str, certified: int, columns: int) -> None:
    row = {"address": "127.0.0.1:7101", "state": state, "release": "0.1.0", "certified": certified}
    group = {
        "group": "shop",
        "view_id": 3,
        "view": [],
        "primary": "m1",
        "format_version": 2,
        "log": None,
    }
    text = "m2 does not answer: it is gone, and what it had of the log is [nowhere] else by now"
    document = {**group, "members": [{"name": "m1", **row}], "problems": [{"text": text}]}
    shown = rendered(document, columns)
    assert max(map(len, shown.splitlines())) <= columns
    words = set(shown.replace(",", " ").split())
    assert words >= {*HEADINGS, state, "127.0.0.1:7101", "0.1.0", *text.replace(",", "").split()}
    assert f"{certified:,}" in shown


def test_into_a_pipe_each_problem_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "word " * 100 + "end"
    document = {
        "group": "shop",
        "view_id": 3,
        "view": [],
        "primary": "",
        "format_version": 2,
        "log": None,
        "members": [],
        "problems": [{"text": text}],
    }
    monkeypatch.setattr(status_views, "group_document", lambda *_: document)
    assert show_status("a:1", as_json=False, watch=False, period_ms=100) == 1
    assert text in capsys.readouterr().out.splitlines()


def test_the_table_says_what_keeps_the_group_at_an_earlier_format() -> None:
    rows = [
        {"name": "m1", "address": "a:1", "state": "ONLINE", "release": "1.0", "format_version": 2},
        {"name": "m2", "address": "b:1", "state": "ONLINE", "release": "1.1", "format_version": 3},
        {"name": "m3", "address": "c:1", "state": "UNREACHABLE"},
    ]
    nothing: dict[str, object] = {"log": None, "problems": [], "primary": ""}
    group = {"group": "shop", "view_id": 3, "view": [], "members": rows, **nothing}
    mixed = rendered({**group, "format_version": 2})
    assert "1.0" in mixed and "1.1" in mixed
    assert "writes format 2 of the log: not all read what these do: m2 3" in mixed
    assert "format" not in rendered({**group, "format_version": 2, "members": rows[:1]})


def test_a_copy_that_comes_in_is_shown_with_its_estimate() -> None:
    status = group_pb2.MemberStatus(
        state=group_pb2.MEMBER_STATE_RECOVERING,
        recovery=group_pb2.RecoveryProgress(
            donor="m2", bytes_done=516_000_000, bytes_total=1_200_000_000, bytes_per_second=57e6
        ),
    )
    document = member_document(status)
    recovery = document["recovery"]
    assert isinstance(recovery, dict)
    assert (recovery["donor"], recovery["seconds_left"]) == ("m2", 12.0)
    row = {"name": "m3", "address": "c:1", **document}
    text = rendered(
        {
            "group": "shop",
            "view_id": 3,
            "view": [],
            "primary": "",
            "format_version": 0,
            "members": [row],
            "log": None,
            "problems": [],
        }
    )
    assert "m3: RECOVERING 43 % of 1.2 GB from m2, 12 s left" in text
    assert member_document(group_pb2.MemberStatus())["recovery"] is None


@pytest.mark.nats
@pytest.mark.cluster
def test_the_verb_status_answers_with_one_document_and_0(
    local_group: LocalGroup,
    member_address: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["groupcert", "status", member_address, "--json"])

    def answer() -> str:
        """What it prints where nothing is wrong: a busy machine shows members as silent."""
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return "" if caught.value.code else capsys.readouterr().out

    document = json.loads(wait_for("a group that is well", answer))
    assert set(document) == {
        "group",
        "view_id",
        "primary",
        "format_version",
        "view",
        "departed",
        "log",
        "comparison",
        "members",
        "problems",
    }
    for row in (*document["members"], *document["view"]):
        assert (row["release"], row["format_version"]) == (version("groupcert"), FORMAT_VERSION)
    assert document["format_version"] == FORMAT_VERSION
    assert document["problems"] == []
    assert [each["state"] for each in document["log"]["servers"]] == ["CURRENT"]
    assert document["log"]["leader"] == document["log"]["servers"][0]["name"]
    assert [row["name"] for row in document["view"]] == [*local_group.names]
    assert {row["name"]: (row["address"], row["state"]) for row in document["members"]} == {
        name: (address, "ONLINE") for name, address in local_group.addresses.items()
    }


@pytest.mark.nats
@pytest.mark.cluster
@pytest.mark.slow
def test_a_member_that_was_killed_is_unreachable_and_a_finding(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"member_expel_timeout_ms": 600_000}
    with LocalGroup(tmp_path_factory.mktemp("killed"), members=2, settings=settings) as group:
        group.kill("m2")
        monkeypatch.setattr(sys, "argv", ["groupcert", "status", group.addresses["m1"], "--json"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    document = json.loads(capsys.readouterr().out)
    states = {row["name"]: row["state"] for row in document["members"]}
    assert states == {"m1": "ONLINE", "m2": "UNREACHABLE"}
    assert caught.value.code == 1


def test_messages_that_were_skipped_are_told_once_and_are_no_markup() -> None:
    last = group_pb2.SkippedMessage(log_sequence=7, why="it is no batch", claimed_member="'[/]'")
    status = group_pb2.MemberStatus(skipped_messages=3, skipped_last=last)
    document = member_document(status)
    assert document["skipped_messages"] == 3
    assert document["skipped_last"] == {
        "log_sequence": 7,
        "why": "it is no batch",
        "claimed_member": "'[/]'",
    }
    assert member_document(group_pb2.MemberStatus())["skipped_last"] is None
    rows = [{"name": name, "address": "a:1", **document} for name in ("m1", "m2")]
    nothing: dict[str, object] = {"log": None, "problems": []}
    group = {"group": "shop", "view_id": 3, "view": [], "primary": "", "format_version": 0}
    text = rendered({**group, "members": rows, **nothing})
    words = "3 messages of the log were skipped, the last one is 7, which says it is of '[/]'"
    assert " ".join(text.split()).count(words) == 1


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
        last_error=applier_pb2.LastError(
            stage="executing",
            worker=1,
            gtid="g:11",
            statement="INSERT INTO t (id) VALUES (1)",
            cause="TransientFailure: duplicate_key at the target",
            at_seconds=1.7e9,
        ),
        operator_skipped_transactions=2,
    ),
    workers=[
        applier_pb2.ApplierWorker(
            worker=1,
            state="retrying",
            gtid="g:11",
            waits_for="what failed to be possible",
            executed_transactions=400,
            retried_transactions=6,
            last_gtid="g:10",
            last_seconds=1.7e9 - 1,
            queued_transactions=1,
        )
    ],
)
SCRIPTS = sorted((FOLDER / "applier").glob("*.txt"))


def test_no_word_of_an_applier_is_broken_at_80_columns() -> None:
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
        names = {
            name: stack.enter_context(replica_server(partial(answers.get, name)))
            for name in answers
        }
        terminal = Terminal(tmp_path, monkeypatch, capsys, names)
        run_script(path, terminal.handlers, rewrite=rewrite)


def test_the_document_of_an_applier_has_every_field() -> None:
    script = (FOLDER / "applier" / "status.txt").read_text()
    (document,) = (json.loads(line) for line in script.splitlines() if line.startswith('{"coord'))
    fields = {field.name for field in applier_pb2.Coordinator.DESCRIPTOR.fields}
    assert document["coordinator"].keys() == fields
