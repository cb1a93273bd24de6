"""Row changes in pieces: what goes in comes out, whatever the size of rows and pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier.errors import InvalidWriteSet
from groupcert.members.wire.pieces import ROW_BYTES, RowReader, joined, split, split_payload
from groupcert.v1.transaction_pb2 import Changes

KEYS = st.binary(max_size=12)
PUTS = st.dictionaries(KEYS, st.binary(max_size=120), max_size=12)


def read(pieces: list[bytes]) -> tuple[dict[bytes, bytes], list[bytes]]:
    """All rows of some pieces."""
    reader = RowReader()
    puts: dict[bytes, bytes] = {}
    deletes: list[bytes] = []
    for piece in pieces:
        put_keys, put_values, delete_keys = reader.read(piece)
        puts.update(zip(put_keys, put_values, strict=True))
        deletes += delete_keys
    reader.end()
    return puts, deletes


@given(PUTS, st.lists(KEYS, max_size=8), st.integers(1, 200))
def test_rows_come_back_from_their_pieces(
    puts: dict[bytes, bytes], deletes: list[bytes], piece_bytes: int
) -> None:
    pieces = list(split(sorted(puts.items()), deletes, piece_bytes))
    assert read(pieces) == (puts, deletes)
    longest = max((len(key) for key in (*puts, *deletes)), default=0)
    assert all(len(piece) <= piece_bytes * 3 // 2 + longest + 2 * ROW_BYTES for piece in pieces)


@given(PUTS, st.lists(KEYS, max_size=8), st.integers(1, 200))
def test_pieces_become_the_changes_that_they_were_made_of(
    puts: dict[bytes, bytes], deletes: list[bytes], piece_bytes: int
) -> None:
    changes = Changes(put_keys=puts.keys(), put_values=puts.values(), delete_keys=deletes)
    pieces = list(split_payload(changes.SerializeToString(), piece_bytes))
    assert Changes.FromString(joined(pieces)) == changes


@given(PUTS, st.integers(1, 200), st.data())
def test_neighbours_that_end_with_whole_rows_may_be_one_piece(
    puts: dict[bytes, bytes], piece_bytes: int, data: st.DataObject
) -> None:
    merged: list[bytes] = []
    for piece in split(sorted(puts.items()), (), piece_bytes):
        if merged and not Changes.FromString(merged[-1]).continued and data.draw(st.booleans()):
            merged[-1] += piece
        else:
            merged.append(piece)
    assert read(merged) == (puts, [])


START = Changes(put_keys=[b"k"], put_values=[b"1"], continued=True).SerializeToString()


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([b"\xff"], r"found 'ff', expected a serialized groupcert\.v1\.Changes"),
        ([Changes(put_keys=[b"k"]).SerializeToString()], "1 put_keys and 0 put_values"),
        ([Changes(continued=True).SerializeToString()], "a value that goes on"),
        ([START], "a value without its end"),
        ([START, b""], "a value without its end"),
        ([START, Changes(put_keys=[b"l"], put_values=[b"2"]).SerializeToString()], "the same key"),
    ],
)
def test_what_is_no_piece_is_refused(pieces: list[bytes], message: str) -> None:
    with pytest.raises(InvalidWriteSet, match=message):
        read(pieces)
