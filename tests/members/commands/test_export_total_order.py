"""`groupcert export --log-server`: a log on a real log server, told as its messages are."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from groupcert.certifier.history.schema import Row
from groupcert.members.commands.export import ExportOptions
from groupcert.members.commands.export_total_order import export_total_order
from groupcert.members.core.log_records import LogBatch
from groupcert.members.total_order.jetstream import JetStreamOptions, JetStreamOrder
from groupcert.members.wire.log_batches import encode_batch
from tests.datadriven import Command, run_script
from tests.members.certification_logs import read_log
from tests.members.commands.test_total_order_history import rows_of
from tests.members.state_machines import batch_of, joining, new_member, send, write
from tests.transcripts import FOLDER, Terminal

MESSAGES = 300
GROUPS = ("shop", "trimmed", "empty", "missing")
SCRIPTS = sorted((FOLDER / "log").glob("*.txt"))
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


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_log_is_exported_as_the_transcript_says(
    path: Path,
    jetstream_options: JetStreamOptions,
    log: list[LogBatch],
    rewrite: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {name: f"{path.stem}-{name}" for name in GROUPS}
    names["log"] = jetstream_options.servers[0]
    terminal = Terminal(tmp_path, monkeypatch, capsys, names)

    def publish(command: Command) -> str:
        """publish group= messages= [trim=]: a group's log begins with so many; trimmed to one."""
        group, messages, trim = command.take("group", "messages", "trim")
        options = replace(jetstream_options, group=names[str(group)])
        asyncio.run(_publish(options, log[: int(str(messages))], int(trim or 0)))
        return ""

    run_script(path, {**terminal.handlers, "publish": publish}, rewrite=rewrite)


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
) -> None:
    options = ExportOptions(out=tmp_path, file_rows=100)
    export_total_order(stream, None, options)
    assert told(read_log(tmp_path, "total-order")) == told(rows_of(log))


def test_a_part_of_the_log_is_told_as_a_member_sees_it(
    stream: JetStreamOptions, log: list[LogBatch], tmp_path: Path
) -> None:
    options = ExportOptions(out=tmp_path)
    export_total_order(stream, "m2", options, first_sequence=20, last_sequence=59)
    found = read_log(tmp_path, "m2")
    assert len(found) == 1 + 2 * 40
    assert told(found) == told(rows_of(log, "m2", 20)[: 1 + 2 * 40])
