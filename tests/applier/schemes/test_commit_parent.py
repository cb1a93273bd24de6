"""WL#6314: transactions of one commit parent run in parallel.

Stories are in tests/testdata/schemes.
"""

import random
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.job import Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes.commit_parent import CommitParent
from tests.applier.scheme_driver import SchemeDriver, run_randomly, streams, waves


def interval(entry: RelayEntry) -> tuple[int, int]:
    """What is the same for transactions that may run at once, and for no others."""
    parent = entry.header.commit_parent if entry.gtid else 0
    return parent, 0 if parent else entry.position


def may_start(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
    """All that is not committed before it has its commit parent."""
    [entry] = job.entries
    return all(interval(one) == interval(entry) for one in before)


@given(streams, st.booleans(), st.integers(1, 4), st.integers(1, 20), st.integers(0, 2**32))
def test_everything_commits_and_no_two_commit_parents_meet(
    entries: list[RelayEntry], ordered: bool, workers: int, room: int, seed: int
) -> None:
    scheme = CommitParent(preserve_commit_order=ordered)
    driver = SchemeDriver(scheme, workers, room=room, rule=may_start)
    committed = run_randomly(driver, entries, random.Random(seed)).committed
    assert (committed if ordered else sorted(committed)) == entries


@given(streams)
def test_all_of_a_commit_parent_start_together(entries: list[RelayEntry]) -> None:
    expected = [[one.position for one in group] for _, group in groupby(entries, interval)]
    assert waves(CommitParent(), entries) == expected
