"""The total order as a certification log: what an observer sees that is nobody, or a member.

Method: a group of members makes a log (`tests/members/core/group_script.py`), which is read again
as its bytes; the script is tests/testdata/total_order.txt.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from groupcert.certifier.errors import CorruptRecord, GroupcertError
from groupcert.certifier.history.schema import STEP_BITS, Row
from groupcert.certifier.position import log_sequence_of
from groupcert.certifier.write_set import store_key_item
from groupcert.internal.v1.log_pb2 import LogBatchHead
from groupcert.members.commands.export_total_order import TotalOrderHistory
from groupcert.members.core.log_records import LogBatch, MemberReport, Message
from groupcert.members.total_order.port import Delivery
from groupcert.members.wire.log_batches import encode_batch
from groupcert.members.wire.row_changes import encode_changes
from tests.datadriven import Command, run_script
from tests.members.core.group_script import GroupScript
from tests.members.core.message_text import short, words_of
from tests.members.state_machines import batch_of, write

SCRIPT = Path(__file__).parents[2] / "testdata" / "total_order.txt"
LEFT_OUT = {"format_version", "observer", "history", "place", "kind", "settings"}
LEFT_OUT |= {"gtid_brought", "gtid_source", "gtid_number", "snapshot_version", "reported_digest"}
LEFT_OUT |= {"winner_item", "winner_origin", "view_id"}
"""Of rows: what is not drawn, or otherwise."""


def payload_of(message: Message) -> bytes:
    """Returns a message of a script as it is in the log."""
    if isinstance(message, LogBatch):
        return encode_batch(message)
    if not message.format_version:
        return b"\xff"
    head = LogBatchHead(format_version=message.format_version, member=message.member)
    head.incarnation = message.incarnation
    return head.SerializeToString()


def rows_of(
    messages: Sequence[Message],
    observer: str | None = None,
    first: int = 1,
    *,
    keys: bool = False,
    skip: int = 0,
) -> list[Row]:
    """Returns the history of a log that has these messages."""
    history = TotalOrderHistory(observer, first, keys=keys, is_skip_ordered=skip.__eq__)
    payloads = enumerate(map(payload_of, messages), 1)
    return list(history.rows(Delivery(*each) for each in payloads))


def row_text(row: Row) -> str:
    """Returns a row as the script draws it: its message, its kind, what it has."""
    log_sequence = log_sequence_of(int(str(row["place"])) >> STEP_BITS)
    words = [f"{name}={value!r}" for name, value in row.items() if name not in LEFT_OUT]
    text = " ".join([str(log_sequence), str(row["kind"]), *words])
    return short(text.replace("'", ""))


class Script(GroupScript):
    """A group, and histories of its log."""

    def history(self, command: Command) -> str:
        """history [<observer>] [first=] [skip=<message>] [settings]: its rows from a message on;
        with `settings`, those of the first rows in place of rows.
        """
        first, skip = (int(command.arguments.get(name, 0)) for name in ("first", "skip"))
        observer = next((word for word in words_of(command) if word != "settings"), None)
        try:
            rows = rows_of(self.log, observer, first or 1, skip=skip)
        except GroupcertError as error:
            return f"{type(error).__name__}: {error}"
        assert {row["observer"] for row in rows} == {observer or "total-order"}
        if "settings" in words_of(command):
            return "\n".join(short(str(row["settings"])) for row in rows if "settings" in row)
        return "\n".join(map(row_text, rows))


def test_the_script_gives_its_answers(rewrite: bool) -> None:
    script = Script()
    run_script(SCRIPT, script.handlers | {"history": script.history}, rewrite=rewrite)


def test_keys_go_along_where_that_is_allowed() -> None:
    item = store_key_item(b"account/1")
    logged = write(0, item)._replace(payload=encode_changes([b"account/1"], [b"SECRET"]))
    script = Script()
    script.online(Command(name="members", arguments={"m1": ""}, body=()))
    messages = [*script.log, batch_of(1, 2, [logged])]
    without, told = (rows_of(messages, keys=keys)[-1] for keys in (False, True))
    assert "write_keys" not in without
    assert told == without | {"write_keys": ["account/1"]}


def test_a_log_that_makes_no_group_is_refused() -> None:
    batch = batch_of(1, 1, controls=[MemberReport(0, 0, 0, b"")])
    with pytest.raises(CorruptRecord, match="none of the messages to 1 has a group's settings"):
        rows_of([batch])
