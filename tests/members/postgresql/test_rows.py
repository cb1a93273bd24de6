"""Rows of a transaction as its backend sends them, frame by frame."""

import pytest

from groupcert.certifier.write_set import item_from_text, store_key_item
from groupcert.members.postgresql import rows
from groupcert.members.postgresql.rows import ChangedRows, rows_in
from groupcert.members.wire.pieces import RowReader


def test_rows_come_whole_and_are_known_by_their_items() -> None:
    changes = ChangedRows()
    changes.add([("s.t/1", "one"), ("s.t/2", "beg")], [], continued=True)
    changes.add([("s.t/2", "in, ")], ["s.t/email/a"], continued=True)
    changes.add([("s.t/2", "é end"), ("s.u/1", None)], [], continued=False)
    found = {b"s.t/1": b"one", b"s.t/2": "begin, é end".encode(), b"s.u/1": None}
    assert dict(rows_in(changes.parts)) == found
    assert changes.tables == {"s.t", "s.u"}
    item = item_from_text("s.t/email/a")
    assert changes.items == [item]
    assert changes.write_set == {item, *map(store_key_item, found)}
    assert changes.name_of(item) == "s.t/email/a"
    assert changes.name_of(store_key_item(b"s.t/2")) == "s.t/2"


def test_a_long_value_is_divided_among_rows_and_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "VALUE_BYTES", 100)
    changes = ChangedRows()
    long = "".join(f"{number:05}" for number in range(100))
    changes.add([("s.t/0", "before"), ("s.t/1", long[:40])], [], continued=True)
    for first in range(40, 440, 40):
        changes.add([("s.t/1", long[first : first + 40])], [], continued=True)
    changes.add([("s.t/1", long[440:]), ("s.t/2", "after")], [], continued=False)
    found = {b"s.t/0": b"before", b"s.t/1": long.encode(), b"s.t/2": b"after"}
    assert list(rows_in(changes.parts)) == list(found.items())
    reader = RowReader()
    divided = {key for part in changes.parts for key in reader.read(part)[0]}
    numbered = {b"s.t/1\x00%d" % number for number in range(1, 4)}
    assert divided == {*found, *numbered}
    assert changes.write_set == set(map(store_key_item, divided))


def test_what_is_over_the_limit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "TRANSACTION_BYTES_MAX", 1_000)
    many = ChangedRows()
    for number in range(40):
        many.add([(f"s.t/{number}", "a" * 40)], [], continued=False)
    assert "1000 at most" in many.problem
    assert many.parts == []
