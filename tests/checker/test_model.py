"""The model against small logs, whose decisions WL#8440's examples and the rule say."""

import ast
from pathlib import Path

from tests.checker.check import Reading
from tests.checker.log_writer import UUID, LogWriter, transaction
from tests.sources import ROOT, Source, imported_names

MODEL = ("model.py", "decision.py", "gtid_numbers.py", "log_transactions.py")
MODEL_LINES_MAX = 150


def read(log: LogWriter, observer: str = "m2") -> Reading:
    return Reading(log.messages, observer)


def verdicts(reading: Reading) -> list[str]:
    return [each.verdict for each in reading.decisions]


def test_the_first_committer_wins_and_the_loser_is_told_by_whom() -> None:
    log = LogWriter()
    log.write("m1", transaction(b"a", 0, {b"x": b"1"}))
    log.write("m2", transaction(b"b", 0, {b"y": b"1", b"x": b"2"}))
    log.write("m2", transaction(b"c", 1, {b"x": b"3"}))
    reading = read(log)
    assert verdicts(reading) == ["CERTIFIED", "CONFLICT", "CERTIFIED"]
    assert reading.decisions[1].winner == 1
    assert [reading.value(b"x", version) for version in range(3)] == [None, b"1", b"3"]


def test_what_was_read_is_certified_and_not_recorded() -> None:
    log = LogWriter()
    log.write("m1", transaction(b"a", 0, {b"x": b"1"}))
    log.write("m1", transaction(b"b", 0, {b"y": b"1"}, reads=(b"x",)))
    log.write("m1", transaction(b"c", 1, {b"z": b"1"}, reads=(b"y",)))
    log.write("m2", transaction(b"d", 0, {b"y": b"2"}))
    assert verdicts(read(log)) == ["CERTIFIED", "CONFLICT", "CERTIFIED", "CERTIFIED"]


def test_repetitions_of_messages_and_of_ids_count_once() -> None:
    log = LogWriter()
    sequence = log.write("m1", transaction(b"a", 0, {b"x": b"1"}))
    log.repeat(sequence)
    log.write("m2", transaction(b"a", 0, {b"x": b"1"}))
    assert verdicts(read(log)) == ["CERTIFIED"]


def test_a_run_that_is_not_in_the_view_writes_nothing() -> None:
    log = LogWriter()
    log.change_view(1, "m1")
    log.change_view(1, "m1", "m2")  # For the view before: it lost.
    log.write("m2", transaction(b"a", 0, {b"x": b"1"}))
    reading = read(log)
    assert reading.decisions == []
    assert reading.model.view_id == 2


def test_snapshots_that_are_too_old_and_such_that_are_not_there_yet() -> None:
    log = LogWriter()
    log.write("m1", transaction(b"a", 0, {b"x": b"1"}), transaction(b"b", 1, {b"x": b"2"}))
    log.report(2)
    log.write("m1", transaction(b"c", 1, {b"y": b"1"}), transaction(b"d", 3, {b"y": b"1"}))
    assert verdicts(read(log))[2:] == ["TOO_OLD", "REFUSED"]


def test_members_take_gtids_of_blocks_until_the_view_changes() -> None:
    log = LogWriter()
    log.write("m1", transaction(b"a", 0, {b"x": b"1"}))
    log.write("m2", transaction(b"b", 0, {b"y": b"1"}), transaction(b"c", 0, {b"z": b"1"}))
    log.change_view(1, "m1", "m2")
    log.write("m2", transaction(b"d", 3, {b"x": b"1"}))
    log.write("m1", transaction(b"e", 3, {b"y": b"1"}))
    numbers = [each.gtid.removeprefix(f"{UUID}:") for each in read(log).decisions]
    assert numbers == ["1", "101", "102", "2", "103"]


def test_stamps_are_those_of_the_worklogs_examples() -> None:
    log = LogWriter()
    log.write("m1", transaction(b"a", 0, {b"x": b"1"}), transaction(b"b", 0, {b"y": b"1"}))
    log.write("m1", transaction(b"c", 2, {b"x": b"2"}), transaction(b"d", 3, {}))
    log.write("m2", transaction(b"e", 4, {b"x": b"3"}))  # Its own: it has no stamps.
    log.write("m1", transaction(b"f", 5, {b"x": b"4"}))
    stamps = [each.stamps for each in read(log).decisions]
    assert stamps == [(1, 2), (1, 3), (2, 4), (4, 5), (0, 0), (5, 6)]


def test_a_collection_closes_the_window_of_the_stamps() -> None:
    log = LogWriter()
    log.write("m1", *(transaction(b"%d" % n, 0, {b"%d" % n: b""}) for n in range(63)))
    log.report(63)
    log.write("m1", transaction(b"a", 63, {b"x": b"1"}), transaction(b"b", 63, {b"0": b"1"}))
    stamps = [each.stamps for each in read(log).decisions]
    assert stamps[62:] == [(1, 64), (1, 65), (65, 66)]


def test_transactions_that_are_columns_are_the_same() -> None:
    transactions = [
        transaction(b"a", 0, {b"x": b"1", b"y": None}),
        transaction(b"b", 0, {}),
        transaction(b"c", 1, {b"x": b"2"}),
        transaction(b"d", 1, {b"x": b"3"}),
    ]
    rows, columns = LogWriter(), LogWriter()
    rows.write("m1", *transactions)
    columns.write_columns("m1", *transactions)
    assert read(rows).decisions == read(columns).decisions
    assert verdicts(read(columns)) == ["CERTIFIED", "CERTIFIED", "CERTIFIED", "CONFLICT"]


def test_the_model_knows_nothing_of_the_group_but_its_messages() -> None:
    """It is a second opinion: short, and without the certifier's or the members' code."""
    lines = 0
    for name in MODEL:
        path = Path("tests/checker") / name
        source = Source(str(path), (ROOT / path).read_text())
        lines = max(lines, len(source.text.splitlines()))
        for _, imported in imported_names(source):
            is_message = imported.startswith(("groupcert.v1.", "groupcert.internal.v1."))
            assert is_message or not imported.startswith("groupcert.")
            assert not imported.startswith("tests.") or imported.startswith("tests.checker.")
        assert ast.get_docstring(ast.parse(source.text))
    assert lines <= MODEL_LINES_MAX
