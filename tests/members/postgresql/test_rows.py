"""Rows of a transaction as its backend sends them, frame by frame."""

import pytest

from groupcert.certifier.write_set import item_from_text, store_key_item
from groupcert.members.postgresql import rows
from groupcert.members.postgresql.rows import ChangedRows, rows_in


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


def test_what_is_over_a_limit_is_named_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "VALUE_BYTES_MAX", 100)
    monkeypatch.setattr(rows, "TRANSACTION_BYTES_MAX", 1_000)
    long, many = ChangedRows(), ChangedRows()
    for _ in range(4):
        long.add([("s.t/1", "a" * 40)], [], continued=True)
    assert long.problem.startswith("Row s.t/1 has more than ")
    assert "100 at most" in long.problem
    for number in range(40):
        many.add([(f"s.t/{number}", "a" * 40)], [], continued=False)
    assert "1000 at most" in many.problem
    assert long.parts == many.parts == []
