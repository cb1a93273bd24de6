"""Prefixes: what a GTID set has of a history, by runs of GTIDs, and by each GTID alone."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier.audit.rows.prefixes import Executed, numbers_of, runs_of, whole

NUMBER_MAX = 30
NUMBERS = st.integers(1, NUMBER_MAX)
EXECUTED = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40)
"""Numbers and their versions; a wrong history may have both more than once."""
RUNS = st.builds(
    lambda firsts, length: [(a + i, b + i) for a, b in firsts for i in range(length)],
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4),
    st.integers(1, 8),
)


@given(EXECUTED | RUNS, st.sets(NUMBERS), st.integers(1, 50))
def test_a_set_is_whole_up_to_the_first_version_that_it_lacks(
    executed: list[tuple[int, int]], named: set[int], frame_rows: int
) -> None:
    numbers, versions = zip(*executed, strict=True)
    rows = pl.DataFrame({"h": 0, "gtid_source": "a", "gtid_number": numbers, "version": versions})
    runs = pl.concat(runs_of(rows.iter_slices(frame_rows)))
    gtid_set = "a:" + ":".join(map(str, sorted(named))) if named else ""
    lacked = [version for number, version in executed if number not in named]
    found = whole(Executed({"a": numbers_of(runs)}, []), gtid_set)
    assert found == min(lacked, default=1 << 62) - 1


def test_gtids_that_follow_one_another_are_one_run_whatever_the_frames() -> None:
    count = 100_000
    rows = pl.DataFrame({"gtid_number": range(1, count + 1)}).with_columns(
        h=0, gtid_source=pl.lit("a"), version=pl.col("gtid_number") + 7
    )
    runs = pl.concat(runs_of(rows.iter_slices(4_096)))
    assert len(runs) == -(-count // 4_096)
    numbers = numbers_of(runs)
    assert [each.tolist() for each in numbers[:3]] == [[1], [count], [8]]
