"""XA transactions of a log as payloads: rows at XA PREPARE, and what settles them."""

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from groupcert.applier.mysql_logs.binary_log_reader import TransactionReader
from groupcert.applier.mysql_logs.events import EventReader
from groupcert.applier.mysql_logs.prepared_payload import (
    PreparedStep,
    Step,
    not_prepared,
    prepared_step,
)
from groupcert.applier.mysql_logs.statement_payload import (
    has_statements,
    payload_of,
    statements_of,
)
from tests.applier.mysql_logs import log_writer as w

XID = "x'61',x'',1"


def payloads(path: Path, events: Sequence[bytes]) -> list[bytes]:
    """What a replica gets of a log."""
    path.write_bytes(w.log(events))
    reader = TransactionReader(rows=True)
    with path.open("rb") as file:
        found = EventReader(file, str(path), path.stat().st_size)
        return [payload_of(each) for event in found for each in reader.read(event)]


def branch(*, one_phase: bool) -> bytes:
    """MySQL's end of a branch, of the xid `XID`."""
    return w.event(38, struct.pack("<BIII", one_phase, 1, 1, 0) + b"a")


def changes(number: int, one_phase: bool) -> list[bytes]:
    """A transaction with a row, up to the end of its branch."""
    return [
        w.gtid(number, number - 1, number),
        w.query("XA START X'61',X'',1"),
        w.table_map("t", [(w.INT, b"")]),
        w.number_rows(30, [number]),
        w.query("XA END X'61',X'',1"),
        branch(one_phase=one_phase),
    ]


@pytest.mark.parametrize("end", [Step.COMMIT, Step.ROLLBACK])
def test_a_branch_is_prepared_with_its_rows_and_settled_without(tmp_path: Path, end: Step) -> None:
    settled = [w.gtid(2, 1, 2), w.query(f"XA {end.name} X'61',X'',1")]
    prepared, ended = payloads(tmp_path / "log", [*changes(1, one_phase=False), *settled])
    (rows,) = payloads(tmp_path / "log", changes(1, one_phase=True))
    assert prepared_step(prepared) == (Step.PREPARE, XID, rows)
    assert prepared_step(ended) == (end, XID, b"")
    assert all(map(has_statements, (prepared, ended))), "each is a job of its own"
    assert not any(map(statements_of, (prepared, ended)))


def test_one_phase_is_a_transaction_as_any_other(tmp_path: Path) -> None:
    (rows,) = payloads(tmp_path / "log", changes(1, one_phase=True))
    assert rows
    assert not has_statements(rows)
    assert prepared_step(rows) is None


def test_other_statements_are_no_steps() -> None:
    assert PreparedStep.of("ALTER TABLE xa ADD prepare int", b"") is None


def test_what_is_not_there_is_named_with_the_way_on() -> None:
    failure = not_prepared(PreparedStep(Step.COMMIT, XID, b""), "0-1:7")
    assert str(failure).startswith(f"no_row at the target (XA COMMIT {XID} is 0-1:7, and the rows")
    assert "--skip-gtids 0-1:7" in str(failure)
