"""The simulated source: replaying by any of its stamps never runs two writers of a row at once.

The check knows nothing of schemes: by each rule it computes the earliest start of a transaction,
counted in transactions that must be committed before it, and asks that the last writer of its row
is among them.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.members.wire.row_changes import decode_changes
from tests.bench.source_stream import (
    SourceOptions,
    final_rows,
    longest_chain,
    source_stream,
    table_names,
)

CROWDED = SourceOptions(transactions=2_000, keys=64)
"""Half of the sessions wait for a row."""


def by_lock_interval(entries: Sequence[RelayEntry]) -> list[int]:
    """WL#7165: all up to `last_committed` are committed."""
    return [entry.last_committed for entry in entries]


def by_commit_parent(entries: Sequence[RelayEntry]) -> list[int]:
    """WL#6314: all before the first of those in a row that have the same commit parent are."""
    return before_runs_of(entries, lambda entry: entry.header.commit_parent)


def by_commit_id(entries: Sequence[RelayEntry]) -> list[int]:
    """MDEV-4506: all before the group commit are; 0 is a group of one."""
    return before_runs_of(entries, lambda entry: entry.header.commit_id or -entry.version)


def before_runs_of(
    entries: Sequence[RelayEntry], value_of: Callable[[RelayEntry], int]
) -> list[int]:
    """How many stand before the run of equal values that each entry is in."""
    before: list[int] = []
    for index, entry in enumerate(entries):
        is_same = index > 0 and value_of(entries[index - 1]) == value_of(entry)
        before.append(before[-1] if is_same else index)
    return before


@pytest.mark.parametrize("rule", [by_lock_interval, by_commit_parent, by_commit_id])
@pytest.mark.parametrize("options", [SourceOptions(transactions=2_000), CROWDED])
@pytest.mark.parametrize("seed", range(3))
def test_no_rule_runs_two_writers_of_a_row_at_once(
    rule: Callable[[Sequence[RelayEntry]], list[int]], options: SourceOptions, seed: int
) -> None:
    entries = source_stream(options, seed)
    last_writer: dict[bytes, int] = {}
    for entry, committed_before in zip(entries, rule(entries), strict=True):
        (row,), _, _ = decode_changes(entry.payload)
        assert last_writer.get(row, 0) <= committed_before < entry.version
        last_writer[row] = entry.version


def test_the_check_finds_stamps_that_are_too_early() -> None:
    entries = source_stream(CROWDED)
    rows = [decode_changes(entry.payload)[0][0] for entry in entries]
    one, two = next(
        (index, index + distance)
        for distance in range(1, 200)
        for index in range(len(rows) - distance)
        if rows[index] == rows[index + distance]
    )
    early = [entry._replace(last_committed=0) for entry in entries]
    assert by_lock_interval(early)[two] <= one < by_lock_interval(entries)[two]


def test_group_commits_are_shared_and_a_group_of_one_has_no_id() -> None:
    entries = source_stream(SourceOptions(transactions=5_000))
    sizes = Counter(entry.header.commit_id for entry in entries)
    del sizes[0]
    assert min(sizes.values()) > 1
    assert max(sizes.values()) <= 32
    assert [*sizes] == sorted(sizes)


def test_the_first_table_is_the_hottest_and_the_last_is_used() -> None:
    options = SourceOptions(transactions=5_000)
    tables = Counter(entry.header.tables for entry in source_stream(options))
    by_use = [tables[(name,)] for name in table_names(options)]
    assert by_use[0] == max(by_use)
    assert by_use[0] > 8 * by_use[-1] > 0
    assert sum(by_use) == options.transactions


def test_final_rows_and_longest_chain_are_those_of_serial_execution() -> None:
    entries = source_stream(CROWDED)
    written = [decode_changes(entry.payload) for entry in entries]
    assert final_rows(entries) == {row: value for (row,), (value,), _ in written}
    assert longest_chain(entries) == max(Counter(row for (row,), _, _ in written).values())
