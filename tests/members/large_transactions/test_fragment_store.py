"""Fragments on disk: kept as long as something refers to them, checked when they are read."""

import pytest

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.certifier.errors import CorruptStore
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.storage.store import Family, Store
from groupcert.members.core.log_records import Fragment
from groupcert.members.large_transactions.fragment_store import (
    Digest,
    FragmentStore,
    compress,
    drop,
    drop_kept,
    keep,
)
from groupcert.members.wire.pieces import split
from tests.stores import writing

PUTS = [(b"k%d" % number, bytes(50)) for number in range(9)]
GROUP = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


def stored(store: Store, number: int, run: int = 7) -> bytes:
    """Stores the rows as one set, and returns what refers to it."""
    digest = Digest(run, number)
    for place, piece in enumerate(split(PUTS, [b"d"], 100)):
        digest.add(piece)
        FragmentStore(store).write([(run, Fragment(number, place, compress(piece)))])
    return digest.reference()


def entry_of(reference: bytes, position: int = 1) -> RelayEntry:
    """An entry of the relay queue."""
    return RelayEntry(position, 1, Gtid(GROUP, 1), 0, 0, False, reference)


def numbers(store: Store) -> set[int]:
    """The sets that are there, by number."""
    return {int.from_bytes(key[8:16], "big") for key, _ in store.scan(Family.FRAGMENTS)}


def test_rows_come_back(store: Store) -> None:
    rows = list(FragmentStore(store).rows(stored(store, 1)))
    assert len(rows) > 3
    keys = [key for put_keys, _, _ in rows for key in put_keys]
    assert (keys, rows[-1][2]) == ([key for key, _ in PUTS], [b"d"])


@pytest.mark.parametrize("damage", ["missing", "changed", "exchanged", "not rows"])
def test_what_is_not_what_was_sent_is_not_read(store: Store, damage: str) -> None:
    reference = stored(store, 1)
    (first, one), (second, other), *_ = store.scan(Family.FRAGMENTS)
    with writing(store) as batch:
        if damage == "missing":
            batch.delete(Family.FRAGMENTS, second)
        elif damage == "changed":
            batch.put(Family.FRAGMENTS, second, other[:-1] + bytes([other[-1] ^ 1]))
        elif damage == "exchanged":
            batch.put(Family.FRAGMENTS, first, other)
            batch.put(Family.FRAGMENTS, second, one)
        else:
            batch.put(Family.FRAGMENTS, second, compress(b"\xff"))
    with pytest.raises(CorruptStore, match="large transaction 0000000000000007/1: "):
        list(FragmentStore(store).rows(reference))


def test_a_start_removes_what_nothing_refers_to(store: Store) -> None:
    references = {number: stored(store, number) for number in (1, 2, 3, 4)}
    stored(store, 4, run=8)
    with writing(store) as batch:
        keep(batch, 5, [(7, 3)])
    removed = FragmentStore(store).remove_strangers([(7, 1)], [references[2]])
    assert (removed, numbers(store)) == (2, {1, 2, 3})
    assert FragmentStore(store).remove_strangers([(7, 1)], [references[2]]) == 0


def test_files_of_the_binary_log_take_their_fragments_with_them(store: Store) -> None:
    for number, file in ((1, 4), (2, 5), (3, 6)):
        stored(store, number)
        with writing(store) as batch:
            keep(batch, file, [(7, number)])
    with writing(store) as batch:
        drop_kept(store, batch, 6)
    assert numbers(store) == {3}
    assert FragmentStore(store).remove_strangers((), ()) == 0


def test_what_is_read_again_and_was_executed_goes_unless_the_log_has_it(store: Store) -> None:
    fragments = FragmentStore(store)
    executed, kept, later = (stored(store, number) for number in (1, 2, 3))
    with writing(store) as batch:
        keep(batch, 1, [(7, 2)])
    fragments.discard_executed([entry_of(executed, 4), entry_of(kept, 5), entry_of(later, 6)], 5)
    assert numbers(store) == {2, 3}


def test_dropped_sets_are_removed_whole(store: Store) -> None:
    stored(store, 1), stored(store, 2)
    with writing(store) as batch:
        drop(batch, [(7, 1)])
    assert numbers(store) == {2}
