"""Entries as columns: what goes in comes out, whole or in parts."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.relay_group import (
    RelayEntry,
    RelayGroup,
    first_gtid,
    first_position,
    payloads_of,
    positions_of,
)
from tests.applier.histories import VIEW_CHANGE, entries_of, remote
from tests.applier.queue.test_relay_queue import relay_entries


@given(relay_entries, st.integers(-6, 6), st.integers(-6, 6))
def test_a_group_is_a_sequence_of_its_entries(
    entries: list[RelayEntry], start: int, stop: int
) -> None:
    group = RelayGroup(entries)
    assert group == entries
    assert list(group) == entries
    assert (group[0], group[-1], len(group)) == (entries[0], entries[-1], len(entries))
    assert group[start:stop] == entries[start:stop]
    assert RelayGroup.of(group) is group
    assert RelayGroup.joined([entries, group, ()]) == entries * 2
    assert repr(group) == f"RelayGroup({entries})"


@given(relay_entries)
def test_columns_are_read_without_the_entries(entries: list[RelayEntry]) -> None:
    for each in (entries, RelayGroup(entries)):
        assert payloads_of(each) == [entry.payload for entry in entries]
        assert positions_of(each) == [entry.position for entry in entries]
        assert (first_position(each), first_gtid(each)) == (entries[0].position, entries[0].gtid)


def test_what_was_executed_is_left_out_by_position() -> None:
    entries = entries_of([remote(1, 2), remote(1, 3), remote(2, 4)])
    group = RelayGroup(entries)
    assert group.after(entries[0].position - 1) is group
    assert group.after(entries[1].position) == entries[2:]
    assert not group.after(entries[2].position)


def test_consecutive_gtids_are_of_one_source() -> None:
    entries = entries_of([remote(1, 2), remote(1, 3), remote(2, 4)])
    assert RelayGroup(entries).is_of_one_source
    assert not RelayGroup(entries[::2]).is_of_one_source
    assert not RelayGroup(entries_of([remote(1, 2), VIEW_CHANGE])).is_of_one_source
    assert not RelayGroup().is_of_one_source
