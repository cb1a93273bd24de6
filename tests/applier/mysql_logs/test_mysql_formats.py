"""What MySQL writes is read as its source documentation says: layouts that MariaDB does not have.

The logs are made by `log_writer`, which cites the documents.
"""

import struct
from pathlib import Path

import pytest

from groupcert.applier.errors import InvalidBinaryLog
from groupcert.applier.mysql_logs.binary_log_reader import (
    BinaryLogReader,
    BinaryLogTransaction,
    read_binary_log,
)
from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.write_set import TableKeys, table_item
from tests.applier.mysql_logs import log_writer as w
from tests.row_items import RowChange, row_items

ID_KEY = [(1, b"\x80"), (4, b"\2id"), (8, b"\0")]


def read(
    path: Path, content: bytes, keys: dict[str, TableKeys] | None = None
) -> tuple[list[BinaryLogTransaction], BinaryLogReader]:
    """All transactions of a log, and the reader after that."""
    path.write_bytes(content)
    reader = read_binary_log(path, keys=keys)
    return list(reader), reader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test keeps its log."""
    return tmp_path / "binlog.000001"


def insert(number: int) -> list[bytes]:
    """A transaction that inserts a row into shop.orders, without its GTID."""
    table = w.table_map("orders", [(w.INT, b"")], ID_KEY)
    return [w.query("BEGIN"), table, w.number_rows(30, [number]), w.xid()]


def item(number: int) -> int:
    """The item of a row of shop.orders."""
    change = RowChange(database="shop", table="orders", before=None, after={"id": number})
    return row_items(change, TableKeys(primary=("id",)))[0]


def test_a_gtid_event_has_stamps_and_times(path: Path) -> None:
    start = w.gtid(23, 4, 5, us=1_700_000_000_123_456, original_us=1_600_000_000_000_001)
    (transaction,), reader = read(path, w.log([start, *insert(42)]))
    assert transaction.gtid == f"{w.UUID_TEXT}:23"
    assert (transaction.last_committed, transaction.sequence_number) == (4, 5)
    assert transaction.committed_us == 1_700_000_000_123_456
    assert transaction.original_committed_us == 1_600_000_000_000_001
    assert transaction.items == (item(42),)
    assert transaction.keys == ("shop.orders/PRIMARY/42",)
    assert transaction.header.tables == ("shop.orders",)
    assert transaction.size_bytes == len(path.read_bytes()) - transaction.offset
    assert reader.cut_short is None
    assert reader.tables_without_keys == {}


def test_an_anonymous_transaction_has_stamps_and_no_name(path: Path) -> None:
    (transaction,), _ = read(path, w.log([w.gtid(0, 1, 2), *insert(1)]))
    assert transaction.gtid is None
    assert (transaction.last_committed, transaction.sequence_number) == (1, 2)


@pytest.mark.parametrize(
    ("start", "match"),
    [
        (w.gtid(1 << 63, 0, 1), "a GTID with number 9223372036854775808; expected 1 to"),
        (w.gtid(1, 1 << 63, 1), "last_committed 9223372036854775808; expected 0 to"),
        (w.gtid(1, 0, (1 << 64) - 1), "sequence_number 18446744073709551615; expected 0 to"),
        (w.mariadb_gtid(1 << 63, standalone=True), "a GTID with number 9223372036854775808"),
        (w.mariadb_gtid(0, standalone=True), "a GTID with number 0; expected 1 to"),
        (w.mariadb_gtid(1, commit_id=1 << 63, standalone=True), "commit_id 9223372036854775808"),
    ],
)
def test_a_number_that_no_server_gives_is_named(path: Path, start: bytes, match: str) -> None:
    with pytest.raises(InvalidBinaryLog, match=match):
        read(path, w.log([start, *insert(1)]))


@pytest.mark.parametrize("number", [1, 63, 64, 8191, 1 << 20, 1 << 40, (1 << 62) - 1])
def test_a_tagged_gtid_is_read_at_each_length_of_its_numbers(path: Path, number: int) -> None:
    start = w.tagged_gtid("backup", number, number - 1, number)
    (transaction,), _ = read(path, w.log([start, *insert(1)]))
    assert transaction.gtid == f"{w.UUID_TEXT}:backup:{number}"
    assert (transaction.last_committed, transaction.sequence_number) == (number - 1, number)
    assert transaction.committed_us == transaction.original_committed_us == 1_700_000_000_000_000


@pytest.mark.parametrize("compressed", [True, False])
def test_a_payload_is_read_like_its_events(path: Path, compressed: bool) -> None:
    groups = [
        e
        for n in (1, 2)
        for e in (w.gtid(n, n - 1, n), w.payload(insert(n), compressed=compressed))
    ]
    transactions, _ = read(path, w.log(groups))
    assert [t.items for t in transactions] == [(item(1),), (item(2),)]
    assert (
        sum(t.size_bytes for t in transactions) == len(path.read_bytes()) - transactions[0].offset
    )


@pytest.mark.slow
def test_a_payload_may_hold_more_than_is_inflated_at_once(path: Path) -> None:
    table = w.table_map("orders", [(w.INT, b"")], ID_KEY)
    many = [w.number_rows(30, range(n * 1000, n * 1000 + 1000)) for n in range(200)]
    inside = [w.query("BEGIN"), table, *many, w.xid()]
    (transaction,), _ = read(path, w.log([w.gtid(1, 0, 1), w.payload(inside)]))
    assert transaction.row_count == len(set(transaction.items)) == 200_000


def test_a_damaged_payload_is_an_error(path: Path) -> None:
    damaged = bytearray(w.payload(insert(1)))
    damaged[-30] ^= 0xFF
    with pytest.raises(InvalidBinaryLog, match="payload"):
        read(path, w.log([w.gtid(1, 0, 1), bytes(damaged), *insert(2)], algorithm=0))


def test_an_update_has_the_keys_before_and_after(path: Path) -> None:
    table = w.table_map("orders", [(w.INT, b"")], ID_KEY)
    events = [w.gtid(1, 0, 1), w.query("BEGIN"), table, w.number_rows(31, [1, 2]), w.xid()]
    (transaction,), _ = read(path, w.log(events))
    assert transaction.items == (item(1), item(2))
    assert transaction.row_count == 1


def test_a_partial_json_update_leaves_the_key_readable(path: Path) -> None:
    columns = [(w.INT, b""), (w.JSON, b"\4"), (w.JSON, b"\4")]
    table = w.table_map("orders", columns, [(4, b"\2id\1a\1b"), (8, b"\0")])
    document = struct.pack("<I", 5) + b"12345"
    image = b"\0" + struct.pack("<i", 9) + document + document
    # After the row before: options with bit 1, then a bit for each JSON column that is partial.
    after = b"\1\2\0" + struct.pack("<i", 9) + document + struct.pack("<I", 3) + b"dif"
    rows = w.rows(39, 3, image + after + image + after)
    (transaction,), _ = read(path, w.log([w.gtid(1, 0, 1), w.query("BEGIN"), table, rows, w.xid()]))
    assert transaction.keys == ("shop.orders/PRIMARY/9",)
    assert transaction.row_count == 2


def test_a_table_without_metadata_is_one_item(path: Path) -> None:
    table = w.table_map("orders", [(w.INT, b"")], [(1, b"\0")])
    events = [w.query("BEGIN"), table, w.number_rows(30, [1, 2]), w.xid()]
    (transaction,), reader = read(path, w.log([w.gtid(1, 0, 1), *events]))
    assert transaction.items == (table_item("shop", "orders"),)
    assert "binlog_row_metadata" in reader.tables_without_keys["shop.orders"]


def test_a_key_that_the_caller_names_takes_the_place_of_metadata(path: Path) -> None:
    table = w.table_map("orders", [(w.INT, b"")])
    content = w.log([w.gtid(1, 0, 1), w.query("BEGIN"), table, w.number_rows(30, [7]), w.xid()])
    (transaction,), reader = read(path, content, {"shop.orders": TableKeys(primary=("@1",))})
    assert transaction.items == (item(7),)
    assert reader.tables_without_keys == {}
    with pytest.raises(InvalidSetting, match="@1"):
        read(path, content, {"shop.orders": TableKeys(primary=("id",))})


def test_a_table_that_loses_its_key_stands_for_all_rows_once(path: Path) -> None:
    table = w.table_map("orders", [(w.INT, b"")])
    without = [w.query("BEGIN"), table, w.number_rows(30, [1]), w.xid()]
    groups = [insert(1), without, without, insert(1), [w.query("ALTER TABLE orders")], insert(1)]
    events = [e for n, group in enumerate(groups, 1) for e in (w.gtid(n, n - 1, n), *group)]
    transactions, _ = read(path, w.log(events))
    whole = (table_item("shop", "orders"),)
    assert [t.items for t in transactions] == [(item(1),), (), whole, whole, (), (item(1),)]


def test_a_statement_stands_for_all_rows_of_the_databases_that_it_names(path: Path) -> None:
    groups = [
        w.gtid(1, 0, 1),
        w.query("CREATE TABLE t (a INT)", databases=["shop", "audit"]),
        w.gtid(2, 1, 2),
        w.query("BEGIN"),
        w.query("UPDATE t SET a = 1", seconds=3),
        w.xid(),
        w.gtid(3, 2, 3),
        w.query("XA START X'61',X'',1"),
        *insert(1)[1:3],
        w.query("XA END X'61',X'',1"),
        w.event(38, bytes(13)),
        w.gtid(4, 3, 4),
        w.query("XA COMMIT X'61',X'',1"),
        w.gtid(5, 4, 5),
        w.query("BEGIN"),
        w.query("DELETE FROM t"),
        *insert(1)[1:],
    ]
    ddl, update, prepared, committed, mixed = read(path, w.log(groups))[0]
    assert (ddl.is_ddl, ddl.databases, ddl.tables) == (True, ("audit", "shop"), None)
    assert (update.is_ddl, update.databases, update.items) == (False, None, ())
    assert update.duration_us == 3_000_000
    assert (prepared.items, prepared.tables) == ((item(1),), ("shop.orders",))
    assert (committed.items, committed.is_ddl) == ((), False)
    assert (mixed.items, mixed.tables, mixed.row_count) == ((), None, 1)


def test_unknown_events_are_counted_if_they_say_that_they_may_be_ignored(path: Path) -> None:
    events = [w.event(99, b"?", flags=0x80), w.gtid(1, 0, 1), *insert(1)]
    transactions, reader = read(path, w.log(events))
    assert len(transactions) == 1
    assert reader.skipped == {99: 1}
    with pytest.raises(InvalidBinaryLog, match="type 99"):
        read(path, w.log([w.event(99, b"?"), w.gtid(1, 0, 1), *insert(1)]))


def test_a_relay_log_may_begin_and_break_off_within_transactions(path: Path) -> None:
    events = [*insert(1)[1:], w.gtid(1, 0, 1), *insert(2)[:3]]
    source = w.log([w.gtid(1, 0, 1), *insert(2)], version="8.0.40")[4:]
    transactions, reader = read(path, w.log(events) + source)
    assert [t.items for t in transactions] == [(item(2),)]
    assert reader.dropped == 2
    assert reader.server_version == "8.0.40"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"hello world", "68 65 6c 6c"),
        (b"", "nothing"),
        (b"\xfdbin" + bytes(600), "encrypted"),
        (w.MAGIC + w.event(1, bytes(56)), "version 1 or 3"),
        (w.MAGIC + w.event(2, bytes(56)), "type 2"),
        (w.log([w.event(164, bytes(17))], version="10.11.6-MariaDB"), "encrypted"),
        (
            w.MAGIC
            + w.checked(
                w.event(15, struct.pack("<H50sIB", 4, b"8.4.3", 0, 19) + b"\0" * 42 + b"\3")
            ),
            "algorithm 3",
        ),
    ],
)
def test_what_cannot_be_read_is_a_clear_error(path: Path, content: bytes, match: str) -> None:
    with pytest.raises(InvalidBinaryLog, match=match):
        read(path, content)


def test_a_log_cut_anywhere_gives_its_whole_transactions(path: Path) -> None:
    events = [w.gtid(1, 0, 1), *insert(1), w.mariadb_gtid(2, standalone=False), *insert(2)[1:]]
    content = w.log([*events, w.tagged_gtid("a", 3, 2, 3), w.payload(insert(3))])
    whole, _ = read(path, content)
    ends = [t.offset + t.size_bytes for t in whole]
    for size in range(4, len(content)):
        transactions, reader = read(path, content[:size])
        assert transactions == whole[: sum(end <= size for end in ends)]
        at_an_end = size in (4, whole[0].offset, *ends)
        assert (reader.cut_short is None) == at_an_end, (size, reader.cut_short)


def test_zeros_at_the_end_are_a_log_that_was_being_written(path: Path) -> None:
    transactions, reader = read(path, w.log([w.gtid(1, 0, 1), *insert(1)]) + bytes(4096))
    assert len(transactions) == 1
    assert reader.cut_short is not None
    assert "zeros" in reader.cut_short


@pytest.mark.parametrize("algorithm", [1, 0])
def test_a_changed_byte_never_gives_anything_but_an_error_or_fewer_transactions(
    path: Path, algorithm: int
) -> None:
    events = [w.gtid(1, 0, 1), *insert(1), w.mariadb_gtid(2, standalone=False), *insert(2)[1:]]
    events += [w.tagged_gtid("tag", 5, 4, 5), w.payload(insert(5))]
    content = w.log(events, algorithm=algorithm)
    whole, _ = read(path, content)
    version = range(25, 75)
    for place in range(4, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        try:
            transactions, reader = read(path, bytes(damaged))
        except InvalidBinaryLog as error:
            # The server's version says whether there are checksums: damaged, it is believed.
            assert error.offset <= place or place in version or not algorithm
            continue
        if algorithm:
            assert transactions == whole[: len(transactions)]
            assert len(transactions) == len(whole) or reader.cut_short
