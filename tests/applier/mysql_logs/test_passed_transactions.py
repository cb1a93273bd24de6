"""What is read of a log in parts is what all of it has there, and what is passed over is counted.

The logs are those of real servers (`tests/data/server-logs/README.md`), compressed payloads among
them, or made by `log_writer` where servers have none.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest

from groupcert.applier.errors import InvalidBinaryLog
from groupcert.applier.mysql_logs.binary_log_reader import (
    BinaryLogReader,
    BinaryLogTransaction,
    read_binary_log,
)
from tests.applier.mysql_logs import log_writer as w

LOGS = sorted((Path(__file__).parents[2] / "data" / "server-logs").glob("*.binlog.gz"))
ID_KEY = [(1, b"\x80"), (4, b"\2id"), (8, b"\0")]


def read(path: Path, first: int, until: int) -> tuple[list[BinaryLogTransaction], BinaryLogReader]:
    """The `first` transactions and those from the offset `until` on, and the reader after that."""
    reader, found = read_binary_log(path), list[BinaryLogTransaction]()
    if not first:
        reader.pass_over(until)
    for transaction in reader:
        found.append(transaction)
        if len(found) == first:
            reader.pass_over(until)
    return found, reader


def insert(number: int) -> list[bytes]:
    """A transaction that inserts a row into shop.orders."""
    table = w.table_map("orders", [(w.INT, b"")], ID_KEY)
    changes = [w.query("BEGIN"), table, w.number_rows(30, [number]), w.xid()]
    return [w.gtid(number, number - 1, number), *changes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test keeps its log."""
    return tmp_path / "binlog.000001"


def check(path: Path, whole: Sequence[BinaryLogTransaction], first: int, next_one: int) -> None:
    """Checks what is read if the transactions between two numbers are passed over."""
    ends = [each.offset for each in whole] + [path.stat().st_size]
    # Any byte of the transaction before is as good as the first one of this.
    for until in (ends[next_one], ends[next_one - 1] + 1):
        found, reader = read(path, first, until)
        assert found == [*whole[:first], *whole[next_one:]]
        assert reader.passed == next_one - first
        assert reader.cut_short is None and not reader.dropped


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.name.partition(".binlog")[0])
def test_a_real_log_has_the_same_transactions_behind_those_that_are_passed_over(
    log: Path, path: Path
) -> None:
    path.write_bytes(gzip.decompress(log.read_bytes()))
    whole = list(read_binary_log(path))
    count = len(whole)
    for first in (0, 1, count // 3):
        for next_one in (first + 1, count // 2, count - 1, count):
            check(path, whole, first, next_one)
    assert read(path, 5, whole[3].offset)[0] == whole, "nothing is read twice"


def test_events_of_any_length_are_passed_over(path: Path) -> None:
    """Transactions whose rows are more than is read at once, and some that end there."""
    events = [event for number in range(1, 9) for event in insert(number)]
    for length in (1, 16_000, 16_382, 40_000):
        annotated = [part for event in events for part in (event, w.event(29, b"q" * length))]
        path.write_bytes(w.log(annotated[:-1]))
        check(path, list(read_binary_log(path)), 2, 7)


def test_a_relay_log_whose_format_changes_is_read_by_that_of_its_part(path: Path) -> None:
    """The source was restarted without checksums."""
    one = w.log([event for number in (1, 2, 3) for event in insert(number)])
    other = w.log([event for number in (4, 5, 6) for event in insert(number)], algorithm=0)
    path.write_bytes(one + other.removeprefix(w.MAGIC))
    check(path, list(read_binary_log(path)), 1, 4)


def test_a_log_without_gtid_events_is_read_whole(path: Path) -> None:
    path.write_bytes(w.log([event for number in (1, 2, 3) for event in insert(number)[1:]]))
    whole = list(read_binary_log(path))
    found, reader = read(path, 1, path.stat().st_size)
    assert (found, reader.passed, len(whole)) == (whole, 0, 3)


def test_damage_is_found_where_the_log_is_read(path: Path) -> None:
    content = w.log([event for number in range(1, 6) for event in insert(number)])
    path.write_bytes(content)
    third, fourth = (each.offset for each in list(read_binary_log(path))[2:4])
    damaged = content[: fourth - 8] + bytes(8) + content[fourth:]
    path.write_bytes(damaged)
    assert len(read(path, 1, fourth)[0]) == 3, "an event that is passed over"
    with pytest.raises(InvalidBinaryLog, match="the checksum of the event does not match"):
        read(path, 1, third)
    path.write_bytes(content[: third + 9] + b"\7\0\0\0" + content[third + 13 :])
    with pytest.raises(InvalidBinaryLog, match=rf"byte {third}\b.* an event of 7 bytes"):
        read(path, 1, fourth)


@pytest.mark.parametrize("missing, told", [(1, "the event at byte"), (30, "an event's header at")])
def test_an_event_that_is_cut_off_is_told_though_it_is_passed_over(
    path: Path, missing: int, told: str
) -> None:
    content = w.log([event for number in range(1, 6) for event in insert(number)])
    path.write_bytes(content[:-missing])
    found, reader = read(path, 1, len(content))
    assert len(found) == 1 and reader.passed == 4
    assert reader.cut_short and told in reader.cut_short
