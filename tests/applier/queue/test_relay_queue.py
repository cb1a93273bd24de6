"""The relay queue over a real store: what was appended is what is loaded, until it is discarded."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.relay_queue import RelayQueue, decode, encode
from groupcert.applier.source.header import SourceHeader
from groupcert.certifier.errors import CorruptStore, InvalidSetting, UnsupportedFormat
from groupcert.certifier.gtid import NUMBER_MAX, Gtid
from groupcert.certifier.storage.store import Family, Store, StoreIdentity, integer_key
from tests.applier.histories import GROUP, VIEW_CHANGE, entries_of, remote
from tests.stores import put, writing

numbers = st.integers(0, 2**64 - 1)
gtids = st.builds(Gtid, st.sampled_from([GROUP, f"{GROUP}:backup"]), st.integers(1, NUMBER_MAX))
headers = st.builds(
    SourceHeader,
    commit_parent=numbers,
    domain_id=numbers,
    view_id=numbers,
    locked_since=st.none() | st.integers(0, 2**64 - 2),
    items=st.lists(numbers, max_size=3).map(tuple),
    **dict.fromkeys(("databases", "tables"), st.none()),
    **dict.fromkeys(("commit_id", "committed_us", "file"), st.just(0)),
    parent_items=st.just(()),
)
relay_entries = st.lists(
    st.builds(
        RelayEntry,
        numbers,
        numbers,
        st.none() | gtids,
        numbers,
        numbers,
        st.booleans(),
        st.binary(),
        headers,
    ),
    min_size=1,
    max_size=5,
)


@given(relay_entries, st.integers(0, 2**60), st.data())
def test_a_group_is_read_as_it_was_written_or_not_at_all(
    entries: list[RelayEntry], first: int, data: st.DataObject
) -> None:
    """With its own stamps or with others; not with a byte changed, and not cut short."""
    stored = encode(entries)
    assert decode(stored, "there") == entries
    numbers = list(range(first, first + len(entries)))
    stamped = [
        entry._replace(last_committed=first, sequence_number=number)
        for entry, number in zip(entries, numbers, strict=True)
    ]
    assert decode(encode(entries, ([first] * len(entries), numbers)), "there") == stamped
    place = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(CorruptStore, match="store at there is corrupt"):
        decode(stored[:place], "there")
    changed = bytearray(stored)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises((CorruptStore, UnsupportedFormat)):
        decode(bytes(changed), "there")


def test_a_dense_run_takes_few_bytes() -> None:
    entries = entries_of(remote(number) for number in range(64))
    payloads = sum(len(entry.payload) for entry in entries)
    assert len(encode(entries)) - payloads < 64 * 10 + 200


def test_another_format_is_refused_by_its_number() -> None:
    body = encode(entries_of([remote(1)]))[5:]
    with pytest.raises(UnsupportedFormat, match="relay queue in there has format 9"):
        decode(struct.pack("<BI", 9, zlib.crc32(body)) + body, "there")


def write(store: Store, queue: RelayQueue, entries: Sequence[RelayEntry]) -> None:
    with writing(store) as batch:
        queue.append(batch, entries)
    queue.written()


def discard(store: Store, queue: RelayQueue, position: int) -> None:
    with writing(store) as batch:
        queue.discard(batch, position)


def test_groups_survive_a_restart_until_all_of_them_is_executed(tmp_path: Path) -> None:
    entries = entries_of([remote(1), remote(2), VIEW_CHANGE, remote(3), remote(1)])
    identity = StoreIdentity(group="g", member="m1")
    with Store(tmp_path, identity) as store:
        queue = RelayQueue(store)
        write(store, queue, entries[:2])
        write(store, queue, [])
        write(store, queue, entries[2:4])
        write(store, queue, entries[4:])
        discard(store, queue, entries[2].position)
        assert queue.length == 3
    with Store(tmp_path, identity) as store:
        queue = RelayQueue(store)
        assert list(queue.load()) == [entries[2:4], entries[4:]]
        assert queue.length == 3
        assert queue.bytes == len(encode(entries[2:4])) + len(encode(entries[4:]))
        discard(store, queue, entries[4].position)
        assert (queue.length, queue.bytes) == (0, 0)
        assert list(store.scan(Family.RELAY)) == []


def test_a_group_that_is_executed_before_it_is_stored_goes_afterwards(store: Store) -> None:
    queue = RelayQueue(store)
    first, second = entries_of([remote(1), remote(2)])
    with writing(store) as batch:
        queue.append(batch, [first])
        discard(store, queue, first.position)
    queue.written()
    assert queue.length == 1
    discard(store, queue, second.position)
    assert (queue.length, list(store.scan(Family.RELAY))) == (0, [])


def test_executed_groups_are_kept_up_to_their_limit(tmp_path: Path) -> None:
    entries = entries_of([remote(), remote(), remote()])
    with Store(tmp_path, StoreIdentity(group="g", member="m1")) as store:
        size = len(encode(entries[:1]))
        queue = RelayQueue(store, kept_bytes_max=2 * size, bytes_max=size)
        removed = []
        for entry in entries:
            write(store, queue, [entry])
            assert queue.is_full
            with writing(store) as batch:
                removed.append(queue.discard(batch, entry.position))
            assert (queue.length, queue.bytes) == (0, 0)
    assert removed == [-1, -1, entries[0].position]
    with Store(tmp_path, StoreIdentity(group="g", member="m1")) as store:
        queue = RelayQueue(store, kept_bytes_max=2 * size)
        assert [each for group in queue.load() for each in group] == entries[1:]
        discard(store, queue, entries[2].position)
        assert (queue.length, len([*store.scan(Family.RELAY)])) == (0, 2)


def test_the_queue_says_when_it_is_full(store: Store) -> None:
    by_entries = RelayQueue(store, entries_max=2)
    entries = entries_of([remote(1), remote(2)])
    write(store, by_entries, entries[:1])
    assert not by_entries.is_full
    write(store, by_entries, entries[1:])
    assert by_entries.is_full
    discard(store, by_entries, entries[0].position)
    assert not by_entries.is_full
    by_bytes = RelayQueue(store, bytes_max=1)
    write(store, by_bytes, entries[:1])
    assert by_bytes.is_full


def test_a_limit_of_nothing_is_refused(store: Store) -> None:
    with pytest.raises(InvalidSetting, match="relay_bytes_max is '0'"):
        RelayQueue(store, bytes_max=0)


def test_a_corrupt_group_names_the_store(store: Store) -> None:
    put(store, Family.RELAY, (integer_key(1 << 20), b"\x01nonsense"))
    with pytest.raises(CorruptStore, match=str(store.path)):
        list(RelayQueue(store).load())


def test_appending_out_of_the_total_order_is_a_bug(store: Store) -> None:
    queue = RelayQueue(store)
    first, second = entries_of([remote(1), remote(2)])
    write(store, queue, [second])
    with pytest.raises(AssertionError, match="out of order"):
        write(store, queue, [first])
