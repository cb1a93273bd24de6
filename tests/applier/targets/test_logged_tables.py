"""What a source's tables are at a place in its log: kept, asked for, or nobody knows."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from groupcert.applier.mysql_logs.source_catalogue import ForeignKey, SourceColumn, SourceTable
from groupcert.applier.mysql_logs.statement_payload import PayloadStatement
from groupcert.applier.targets.logged_tables import (
    KeptTables,
    Place,
    TableHistory,
    decode_kept,
    defined_anew,
    encode_kept,
    unlike,
)
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet

SOURCE = "0-1"


def table(name: str, *columns: tuple[str, str]) -> SourceTable:
    """A table of database `shop`."""
    return SourceTable(
        database="shop",
        name=name,
        columns=tuple(
            SourceColumn(name=column, data_type=re.split(r"\W", kind)[0], column_type=kind)
            for column, kind in columns
        ),
        primary_key=(columns[0][0],),
    )


BEFORE = table("orders", ("id", "int(11)"), ("v", "varchar(9)"))
AFTER = table("orders", ("id", "int(11)"), ("v", "varchar(20)"))
PARTS = table("parts", ("id", "int(11)"))
NOW = {"shop.orders": AFTER, "shop.parts": PARTS}
ALTER = "ALTER TABLE orders MODIFY v varchar(20)"


class Log:
    """A log in which transaction number n is the statement of that number, if it has one; `asked`:
    of what reads were to begin after.
    """

    def __init__(self, statements: dict[int, str], length: int) -> None:
        self.statements = statements
        self.length = length
        self.asked: list[int] = []
        self.history = TableHistory(self._read)

    def _read(self, executed: GtidSet) -> tuple[Sequence[tuple[Gtid, PayloadStatement]], GtidSet]:
        self.asked.append(executed.count())
        found = [
            (Gtid(SOURCE, number), PayloadStatement(text, "shop", is_table=True))
            for number, text in self.statements.items()
            if Gtid(SOURCE, number) not in executed
        ]
        return found, up_to(self.length)


def up_to(number: int) -> GtidSet:
    """The first transactions of the log."""
    gtids = GtidSet()
    if number:
        gtids.add_interval(SOURCE, 1, number)
    return gtids


def place(number: int, kept: KeptTables | None) -> Place:
    """Where a target is that has executed so many."""
    return Place(up_to(number), kept)


def test_what_was_kept_holds_until_the_log_defines_it_anew_and_nothing_is_read() -> None:
    log = Log({5: ALTER}, 9)
    kept = {"shop.orders": BEFORE, "shop.parts": PARTS}
    found = log.history.tables(NOW, None, place(3, kept))
    assert (found.known, found.unread, log.asked) == (kept, {}, [])
    assert log.history.keys.keys() == kept.keys()


def test_after_the_last_definition_a_table_is_what_the_source_has_now() -> None:
    log = Log({5: ALTER}, 9)
    found = log.history.tables(NOW, None, place(5, {"shop.orders": None, "shop.parts": PARTS}))
    assert (found.known, found.unread) == (NOW, {})
    assert found.kept == NOW


def test_between_two_definitions_nobody_can_say_what_a_table_was() -> None:
    log = Log({5: ALTER, 8: "RENAME TABLE orders TO o, o TO orders"}, 9)
    kept: KeptTables = {"shop.orders": None, "shop.parts": PARTS}
    found = log.history.tables(NOW, None, place(5, kept))
    assert found.known == {"shop.parts": PARTS}
    assert "rows before 'RENAME TABLE orders" in found.unread["shop.orders"]
    assert found.kept == kept
    assert "shop.orders" not in log.history.keys


def test_a_first_start_knows_the_tables_that_the_log_does_not_define_any_more() -> None:
    found = Log({5: ALTER}, 9).history.tables(NOW, None, place(0, None))
    assert found.known == {"shop.parts": PARTS}
    assert found.unread.keys() == {"shop.orders"}


def test_the_log_is_read_once() -> None:
    log = Log({2: ALTER}, 3)
    assert log.history.tables(NOW, None, place(0, None)).unread
    log.statements[7], log.length = "DROP TABLE parts", 9
    kept: KeptTables = {"shop.orders": None, "shop.parts": PARTS}
    found = log.history.tables(NOW, None, place(4, kept))
    assert (found.known, found.unread) == (NOW, {})
    found = log.history.tables(NOW, None, place(4, dict.fromkeys(NOW)))
    assert found.unread.keys() == {"shop.parts"}
    assert log.asked == [0, 3, 9]


def test_a_table_that_is_nowhere_is_forgotten() -> None:
    log = Log({}, 9)
    found = log.history.tables({}, None, place(9, {"shop.orders": None}))
    assert (found.known, found.unread, found.kept) == ({}, {}, {})


def test_a_table_that_the_log_refutes_is_asked_for_again_once() -> None:
    log = Log({}, 9)
    kept = {"shop.orders": BEFORE, "shop.parts": PARTS}
    log.history.refute("shop.orders")
    assert log.history.tables(NOW, None, place(9, kept)).known == NOW
    assert log.history.tables(NOW, None, place(9, kept)).known == kept


def test_a_targets_own_definitions_tell_but_of_tables_that_were_others_at_first() -> None:
    log = Log({}, 9)
    own = {"shop.orders": BEFORE, "shop.parts": PARTS}
    first = log.history.tables(NOW, own, place(9, None))
    assert (first.own, first.told) == ({"shop.parts": PARTS}, {"shop.orders": AFTER})
    later = log.history.tables(NOW, own, place(9, {}))
    assert (later.own, later.told) == (own, {})
    assert later.kept == {}


def test_spellings_of_both_servers_are_alike() -> None:
    of_mysql = table("orders", ("id", "int unsigned"), ("y", "year"), ("g", "geomcollection"))
    of_mariadb = table(
        "orders", ("id", "int(10) unsigned"), ("y", "year(4)"), ("g", "geometrycollection")
    )
    columns = [replace(each, default="NULL") for each in of_mariadb.columns]
    of_mariadb = replace(of_mariadb, columns=tuple(columns))
    assert not unlike({"shop.orders": of_mysql}, {"shop.orders": of_mariadb})
    signed = replace(of_mysql, columns=table("orders", ("id", "int")).columns)
    assert list(unlike({"shop.orders": of_mysql}, {"shop.orders": signed})) == ["shop.orders"]


@pytest.mark.parametrize(
    ("text", "is_table", "expected"),
    [
        (ALTER, True, {"shop.orders"}),
        ("ALTER TABLE `Orders` ADD w int", True, {"shop.orders"}),
        ("ALTER TABLE orders2 ADD w int", True, set()),
        ("RENAME TABLE parts TO p", True, {"shop.parts", "shop.lines"}),
        ("DROP DATABASE shop", False, {"shop.orders", "shop.parts", "shop.lines"}),
        ("ALTER TABLE shop.others ADD w int", True, set()),
        ("TRUNCATE TABLE orders", True, set()),
        ("INSERT INTO shop.orders VALUES (1, 'x')", False, set()),
    ],
)
def test_a_definition_concerns_what_it_names_and_the_children_of_that(
    text: str, is_table: bool, expected: set[str]
) -> None:
    foreign = ForeignKey(name="f", columns=("id",), parent="shop.parts", parent_columns=("id",))
    lines = replace(table("lines", ("id", "int(11)")), foreign_keys=(foreign,))
    kept = {**NOW, "shop.lines": lines, "shop.gone": None}
    statement = PayloadStatement(text, "shop", is_table=is_table)
    assert set(defined_anew(kept, [statement])) == expected


def test_a_kept_table_is_read_back_with_its_keys() -> None:
    foreign = ForeignKey(name="f", columns=("id",), parent="shop.parts", parent_columns=("id",))
    kept = replace(AFTER, unique_keys={"v": ("v",)}, foreign_keys=(foreign,))
    for each in (kept, None):
        assert decode_kept(encode_kept("shop.orders", each)) == ("shop.orders", each)
