"""MDEV-4506: groups within domains, domains beside each other.

Stories are in tests/testdata/schemes.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, zip_longest
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.job import Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes.group_commit import GroupCommit
from tests.applier.scheme_driver import SchemeDriver, entry, run_randomly, streams, waves


def group(entry: RelayEntry) -> tuple[int, int]:
    """What is the same for transactions of a domain that may run at once, and for no others."""
    commit_id = entry.header.commit_id
    return commit_id, 0 if commit_id else entry.position


def may_start(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
    """All of its domain that is not committed before it was in its group commit."""
    [entry] = job.entries
    domain = entry.header.domain_id
    return all(
        one.gtid and (one.header.domain_id != domain or group(one) == group(entry))
        for one in (before if entry.gtid else ())
    )


def naive_waves(entries: list[RelayEntry]) -> Iterator[list[int]]:
    """Between any two barriers: the first groups of all domains, then the second ones."""
    for is_transaction, stretch in groupby(entries, lambda one: one.gtid is not None):
        if not is_transaction:
            yield from ([one.position] for one in stretch)
            continue
        domains: dict[int, list[RelayEntry]] = {}
        for one in stretch:
            domains.setdefault(one.header.domain_id, []).append(one)
        groups = (
            [[one.position for one in members] for _, members in groupby(lane, group)]
            for lane in domains.values()
        )
        for wave in zip_longest(*groups, fillvalue=[]):
            yield sorted(chain(*wave))


@given(streams, st.integers(1, 4), st.integers(1, 20), st.integers(0, 2**32))
def test_each_domain_commits_in_its_order_and_no_two_groups_of_it_meet(
    entries: list[RelayEntry], workers: int, room: int, seed: int
) -> None:
    driver = SchemeDriver(GroupCommit(), workers, room=room, rule=may_start)
    committed = run_randomly(driver, entries, random.Random(seed)).committed
    for domain in (0, 1, 2):
        in_domain = [one for one in committed if one.header.domain_id == domain]
        assert in_domain == [one for one in entries if one.header.domain_id == domain]


@given(streams)
def test_all_of_a_group_start_together_and_domains_beside_each_other(
    entries: list[RelayEntry],
) -> None:
    assert waves(GroupCommit(), entries) == list(naive_waves(entries))


def test_a_long_transaction_of_another_domain_holds_nothing_up() -> None:
    driver = SchemeDriver(GroupCommit(), 2)
    driver.append([entry(1, domain_id=1), *(entry(number) for number in range(2, 50))])
    [long, first] = driver.take()
    jobs = [first]
    while jobs:
        [job] = jobs
        driver.execute(job)
        driver.commit([job])
        jobs = driver.take()
    assert [one.position for one in driver.committed] == list(range(2, 50))
    assert driver.executing == {long.worker: long}
