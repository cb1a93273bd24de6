"""Parts: each row is in exactly one part of a transaction, the same one in every process."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.row_parts import Part, database_of, slot_of, table_of

rows = st.binary(max_size=20)


@given(st.lists(rows), st.integers(1, 8))
def test_each_row_is_in_one_slot(rows: list[bytes], slots: int) -> None:
    parts = [Part(slot=slot, slots=slots) for slot in range(slots)]
    for row in rows:
        assert [part for part in parts if part.takes(row)] == [parts[slot_of(row, slots)]]


names = st.text("abc.", max_size=4)


@given(st.sets(names, min_size=1), names, rows)
def test_each_row_is_in_the_part_of_its_table(tables: set[str], table: str, key: bytes) -> None:
    row = table.encode() + b"/" + key
    taken = [part for part in map(Part, sorted(tables | {table})) if part.takes(row)]
    assert taken == [Part(table=table)]


def test_a_row_of_no_table_is_in_the_table_without_a_name() -> None:
    assert table_of(b"greeting") == ""
    assert Part().takes(b"greeting")
    assert not Part(table="greeting").takes(b"greeting")


def test_slots_are_what_an_earlier_process_computed() -> None:
    assert [slot_of(b"shop.orders/%d" % key, 4) for key in range(8)] == [2, 0, 2, 0, 3, 1, 3, 1]


def test_parts_of_a_transaction_have_different_names() -> None:
    assert str(Part(table="shop.orders")) == "shop.orders"
    assert [str(Part(slot=slot, slots=2)) for slot in range(2)] == ["0/2", "1/2"]
    assert database_of("shop.orders") == "shop"
