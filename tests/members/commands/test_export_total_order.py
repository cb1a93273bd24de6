"""`groupcert export --log-server`: a log on a real log server, told as its messages are."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.history.schema import Row
from groupcert.members.commands.cli import app
from groupcert.members.commands.export import ExportOptions
from groupcert.members.commands.export_total_order import export_total_order
from groupcert.members.core.log_records import LogBatch
from groupcert.members.errors.membership import GroupMissing
from groupcert.members.total_order.jetstream import JetStreamOptions, JetStreamOrder
from groupcert.members.wire.log_batches import encode_batch
from tests.members.certification_logs import read_log
from tests.members.commands.test_total_order_history import rows_of
from tests.members.state_machines import batch_of, joining, new_member, send, write

MESSAGES = 300
GIVEN = ("number", "chain")
"""Columns that rows get with their file."""


@pytest.fixture
def log() -> list[LogBatch]:
    """Two members, and many messages of transactions."""
    reader = new_member()
    reader.caught_up()
    made = [send(reader), joining(reader, 2)]
    for number in range(MESSAGES - 2):
        writes = [write(number // 2, number % 50), write(number, 1_000 + number)]
        made.append(batch_of(1 + number % 2, 2 + number // 2, writes))
    return made


@pytest.fixture
def stream(jetstream_options: JetStreamOptions, log: list[LogBatch]) -> JetStreamOptions:
    """The log on a server, as who only reads reaches it."""
    asyncio.run(_publish(jetstream_options, log))
    return replace(jetstream_options, replicas=0)


async def _publish(options: JetStreamOptions, messages: Sequence[LogBatch], trim: int = 0) -> None:
    order = JetStreamOrder(options)
    await order.open(create=True)
    for number, batch in enumerate(messages):
        order.publish(f"{number}", encode_batch(batch))
    while order.publishing():  # noqa: ASYNC110 - the port has no event for it
        await asyncio.sleep(0.01)
    if trim:
        await order.trim(trim)
    await order.close()


def told(rows: Sequence[Row]) -> list[Row]:
    """Rows as they were made: without what their file gave them, and what they have not."""
    return [
        {name: value for name, value in row.items() if value is not None and name not in GIVEN}
        for row in rows
    ]


def test_the_log_is_told_from_its_beginning_to_its_end(
    stream: JetStreamOptions,
    log: list[LogBatch],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ExportOptions(out=tmp_path, file_rows=100, as_json=True)
    export_total_order(stream, None, options)
    assert told(read_log(tmp_path, "total-order")) == told(rows_of(log))
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == "total_order"
    assert document["kinds"]["transaction"] == 2 * (MESSAGES - 2)
    assert document["verdicts"]["certified"] > 0
    assert document["verdicts"]["conflict"] > 0
    assert len(document["files"]) == len(list(tmp_path.iterdir())) == 6


def test_an_observer_that_was_never_there_is_noted(
    stream: JetStreamOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for observer in ("m7", "m2"):
        export_total_order(stream, observer, ExportOptions(out=tmp_path, as_json=True))
    never, was = map(json.loads, capsys.readouterr().out.splitlines())
    assert never["notes"] == [
        "m7 is in none of its records: every transaction is told as another member's"
    ]
    assert was["notes"] == []


def test_a_part_of_the_log_is_told_as_a_member_sees_it(
    stream: JetStreamOptions, log: list[LogBatch], tmp_path: Path
) -> None:
    options = ExportOptions(out=tmp_path)
    export_total_order(stream, "m2", options, first_sequence=20, last_sequence=59)
    found = read_log(tmp_path, "m2")
    assert len(found) == 1 + 2 * 40
    assert told(found) == told(rows_of(log, "m2", 20)[: 1 + 2 * 40])


def test_the_command_reads_the_log_that_its_flags_name(
    jetstream_options: JetStreamOptions, log: list[LogBatch], tmp_path: Path
) -> None:
    stream = replace(jetstream_options, group="exported-by-command")
    asyncio.run(_publish(stream, log))
    flags = ["--log-server", stream.servers[0], "--group", stream.group, "--json"]
    done = CliRunner().invoke(app, ["export", "--out", str(tmp_path / "out"), *flags])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == len(rows_of(log))


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (1, MESSAGES + 1, "setting last is .* ends with 300"),
        (MESSAGES + 1, None, "setting first is .* ends with 300"),
        (MESSAGES + 1, MESSAGES + 1, "setting first is .* ends with 300$"),
        (9, 8, "setting last is '8': .* 9 or later"),
    ],
)
def test_messages_that_the_log_does_not_have_are_refused(
    stream: JetStreamOptions, tmp_path: Path, first: int, last: int | None, message: str
) -> None:
    options = ExportOptions(out=tmp_path / "out")
    with pytest.raises(InvalidSetting, match=message):
        export_total_order(stream, None, options, first_sequence=first, last_sequence=last)
    assert not (tmp_path / "out").exists()


def test_a_log_that_was_trimmed_says_where_decisions_are(
    jetstream_options: JetStreamOptions, log: list[LogBatch], tmp_path: Path
) -> None:
    asyncio.run(_publish(jetstream_options, log, trim=7))
    message = "begins with message 7.*the certification logs that the members wrote"
    with pytest.raises(InvalidSetting, match=message):
        export_total_order(jetstream_options, None, ExportOptions(out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_group_that_is_not_there_and_a_log_of_nothing_are_errors(
    jetstream_options: JetStreamOptions, tmp_path: Path
) -> None:
    options = ExportOptions(out=tmp_path / "out")
    log = replace(jetstream_options, connect_ms_max=300)
    with pytest.raises(GroupMissing):
        export_total_order(log, None, options)
    asyncio.run(_publish(jetstream_options, []))
    with pytest.raises(InvalidSetting, match="ends with 0"):
        export_total_order(log, None, options)
    assert not (tmp_path / "out").exists()


def test_a_log_is_not_read_for_an_observer_that_has_one(
    stream: JetStreamOptions, tmp_path: Path
) -> None:
    options = ExportOptions(out=tmp_path)
    export_total_order(stream, None, options)
    with pytest.raises(InvalidSetting, match="name another folder or another observer"):
        export_total_order(replace(stream, group="nowhere"), None, options)
    assert read_log(tmp_path, "total-order")
