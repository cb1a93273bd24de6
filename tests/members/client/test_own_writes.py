"""A transaction's reads see its own writes: compared with a dictionary that was written to."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.members.client.own_writes import OwnWrites

KEYS = st.binary(max_size=2)
VALUES = st.binary(max_size=1)
WRITES = st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=8)


@given(
    rows=st.dictionaries(KEYS, VALUES, max_size=8),
    written=WRITES,
    start=KEYS,
    end=KEYS,
    page_rows=st.integers(1, 9),
)
def test_a_scan_sees_the_snapshot_as_if_it_had_been_written_to(
    rows: dict[bytes, bytes],
    written: list[tuple[bytes, bytes | None]],
    start: bytes,
    end: bytes,
    page_rows: int,
) -> None:
    writes, seen = OwnWrites(), dict(rows)
    for key, value in written:
        if value is None:
            writes.delete(key)
            seen.pop(key, None)
        else:
            writes.put(key, value)
            seen[key] = value

    def in_range(model: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        return sorted(row for row in model.items() if start <= row[0] and (not end or row[0] < end))

    snapshot, own = in_range(rows), writes.within(start, end)
    scanned, first = [], 0
    for last in range(page_rows, len(snapshot), page_rows):
        scanned += own.merged(snapshot[first:last], snapshot[last][0])
        first = last
    assert scanned + own.merged(snapshot[first:], b"") == in_range(seen)


def test_the_last_write_to_a_key_is_the_one_that_counts() -> None:
    writes = OwnWrites()
    writes.put(b"a", b"1")
    writes.delete(b"a")
    writes.delete(b"b")
    writes.put(b"b", b"2")
    assert (writes.puts(), writes.deletes()) == ([(b"b", b"2")], [b"a"])
    assert len(writes) == 2
    assert writes[b"a"] is None
    assert b"c" not in writes


def test_writes_made_during_a_scan_do_not_disturb_it() -> None:
    writes = OwnWrites()
    writes.put(b"b", b"1")
    own = writes.within(b"", b"")
    assert own.merged([(b"a", b"0")], next_key=b"b") == [(b"a", b"0")]
    writes.put(b"c", b"2")
    writes.delete(b"b")
    assert own.merged([(b"d", b"3")], next_key=b"") == [(b"b", b"1"), (b"d", b"3")]
