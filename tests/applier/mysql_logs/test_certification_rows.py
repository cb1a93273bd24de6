"""Binary logs as certification logs: what the log says, nothing else, and breaks between files."""

import json

import pytest

from groupcert.applier.mysql_logs.binary_log_reader import BinaryLogTransaction
from groupcert.applier.mysql_logs.certification_rows import BinaryLogHistory
from groupcert.certifier.history.schema import RecordKind, Row, place_of
from groupcert.certifier.position import position_of
from tests.applier.mysql_logs.transactions import NOTHING, UUID, writes


def stamped(last_committed: int, sequence_number: int) -> BinaryLogTransaction:
    """One of MySQL."""
    return writes(1, last_committed=last_committed, sequence_number=sequence_number)


def at(committed_us: int, gtid: str | None = None) -> BinaryLogTransaction:
    """One that was committed then."""
    return writes(1, committed_us=committed_us, gtid=gtid)


def rows(*files: list[BinaryLogTransaction]) -> list[Row]:
    """The rows of a log's files."""
    return list(BinaryLogHistory().rows(files))


def kinds(*files: list[BinaryLogTransaction]) -> list[str]:
    """What each row behind the first one tells, by a letter: t or v."""
    return [str(row["kind"])[0] for row in rows(*files)[1:]]


def test_a_history_begins_with_where_it_comes_from() -> None:
    (start,) = rows()
    assert (start["kind"], start["observer"], start["version"]) == ("start", "binary-log", 0)
    assert json.loads(str(start["settings"])) == {"source": "binary_log"}
    assert (start["sequence_number"], start["last_committed_global"]) == (0, 0)


def test_a_transaction_of_mysql_has_its_servers_stamps() -> None:
    transaction = writes(
        7,
        2**64 - 1,
        gtid=f"{UUID}:23",
        last_committed=4,
        sequence_number=6,
        committed_us=1_700_000_000_123_456,
    )
    row = rows([stamped(4, 5), transaction])[2]
    assert row == {
        "format_version": 3,
        "observer": "binary-log",
        "history": "1",
        "place": place_of(position_of(2, 0), RecordKind.TRANSACTION),
        "kind": "transaction",
        "version": 2,
        "verdict": "certified",
        "gtid_source": UUID,
        "gtid_number": 23,
        "gtid_brought": True,
        "write_set": [7, -1],
        "is_local": False,
        "last_committed": 4,
        "sequence_number": 6,
        "commit_parent": 1,
        "databases": ["a"],
        "tables": ["a.t"],
        "decided_us": 1_700_000_000_123_456,
    }


def test_a_transaction_of_mariadb_has_its_domain_and_group_commit_and_no_stamps() -> None:
    group = [writes(item, gtid=f"3-7-{item}", commit_id=9, domain_id=3) for item in (41, 42)]
    row = rows(group)[2]
    assert (row["gtid_source"], row["gtid_number"]) == ("3-7", 42)
    assert (row["domain_id"], row["commit_id"], row["commit_parent"]) == (3, 9, 1)
    assert not {"last_committed", "sequence_number"} & row.keys()


def test_keys_go_along_where_that_is_allowed() -> None:
    (_, row) = BinaryLogHistory(keys=True).rows([[writes(7, 8)]])
    assert row["write_keys"] == ["a.t/7", "a.t/8"]
    assert "write_keys" not in rows([writes(7, 8)])[1]


def test_what_a_log_does_not_say_is_left_out() -> None:
    row = rows([NOTHING._replace(databases=None, tables=None)])[1]
    absent = {"gtid_source", "gtid_number", "domain_id", "commit_id", "databases", "tables"}
    assert not absent & row.keys()
    assert (row["gtid_brought"], row["write_set"]) == (False, [])


def test_each_further_file_begins_with_a_break_where_numbers_begin_again() -> None:
    found = rows([stamped(0, 1), stamped(1, 2)], [], [stamped(0, 1)])
    assert [row["kind"] for row in found[1:]] == [
        *["transaction"] * 2,
        "view_change",
        "transaction",
    ]
    view = found[3]
    assert (view["version"], view["resets_clock"], view["members"]) == (2, True, [])
    assert (view["last_committed"], view["sequence_number"]) == (0, 0)
    assert found[4]["commit_parent"] == 3
    assert [int(str(row["place"])) >> 24 for row in found] == [0, 1, 2, 3, 4]


def test_a_relay_log_breaks_where_its_source_began_a_file() -> None:
    assert kinds([stamped(0, 1), stamped(1, 2)], [stamped(2, 3)]) == ["t", "t", "t"]
    assert kinds([stamped(6, 7), stamped(0, 1)], [stamped(1, 2)]) == ["t", "v", "t", "t"]


def test_a_log_without_stamps_breaks_at_each_further_file() -> None:
    assert kinds([], [writes(1), writes(2)], [writes(3), writes(4)]) == ["t", "t", "v", "t", "t"]


def test_a_log_breaks_where_its_server_began_to_write_stamps_or_ended() -> None:
    """As where MySQL 5.6 was replaced by 5.7."""
    assert kinds([writes(1)], [stamped(0, 1), stamped(1, 2)]) == ["t", "v", "t", "t"]
    assert kinds([stamped(0, 1)], [writes(1), writes(2)]) == ["t", "v", "t", "t"]
    assert kinds([writes(1), stamped(0, 1)]) == ["t", "t"]


@pytest.mark.parametrize(
    ("last", "first", "goes_back"),
    [
        (at(10), at(9), True),
        (at(10), at(10), False),
        (at(10, f"{UUID}:7"), at(10, f"{UUID}:7"), True),
        (at(10, f"{UUID}:7"), at(9, f"{UUID}:8"), False),
        (at(10, f"{UUID}:7"), at(11, f"{UUID}:6"), False),
        (at(10, "0-1-7"), at(9, "1-1-6"), True),
        (at(10, "0-1-7"), at(9, "0-1-6"), True),
    ],
)
def test_files_that_are_not_in_order_are_told(
    last: BinaryLogTransaction, first: BinaryLogTransaction, goes_back: bool
) -> None:
    history = BinaryLogHistory()
    assert len(list(history.rows([[at(1), last], [], [first, last]]))) == 6
    assert history.unordered == [2] * goes_back
