"""Rows of a transaction as its backend sends them, frame by frame."""

import pytest

from groupcert.certifier.write_set import item_from_text, store_key_item
from groupcert.members.postgresql import rows
from groupcert.members.postgresql.rows import ChangedRows, rows_in
from groupcert.members.wire.pieces import RowReader


def test_rows_come_whole_and_are_known_by_their_items() -> None:
    changes = ChangedRows()
    changes.add([b"Ts.u", b'+"s.t/1"\none', b'+"s.t/2"\nbeg'], continued=True)
    changes.add([b"!s.t/email/a", b'+"s.t/2"\nin, '], continued=True)
    changes.add(['+"s.t/2"\né end'.encode(), rb'-"s.u/\"1\n"'], continued=False)
    found = {b"s.t/1": b"one", b"s.t/2": "begin, é end".encode(), b's.u/"1\n': None}
    assert dict(rows_in(changes.parts)) == found
    assert changes.truncated == ["s.u"]
    assert changes.tables == {"s.t", "s.u"}
    item = item_from_text("s.t/email/a")
    assert changes.items == [item]
    assert changes.write_set == {item, *map(store_key_item, found)}
    assert changes.name_of(item) == "s.t/email/a"
    assert changes.name_of(store_key_item(b"s.t/2")) == "s.t/2"


def test_a_long_value_is_divided_among_rows_and_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "VALUE_BYTES", 100)
    changes = ChangedRows()
    long = b"".join(b"%05d" % number for number in range(100))

    def row(part: bytes) -> bytes:
        return b'+"s.t/1"\n' + part

    changes.add([b'+"s.t/0"\nbefore', row(long[:40])], continued=True)
    for first in range(40, 440, 40):
        changes.add([row(long[first : first + 40])], continued=True)
    changes.add([row(long[440:]), b'+"s.t/2"\nafter'], continued=False)
    found = {b"s.t/0": b"before", b"s.t/1": long, b"s.t/2": b"after"}
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
        many.add([b'+"s.t/%d"\n%s' % (number, b"a" * 40)], continued=False)
    assert "1000 at most" in many.problem
    assert many.parts == []
