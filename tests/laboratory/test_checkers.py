"""The checkers on histories of the reference store: right ones have no findings, wrong ones have.

Aim: a checker that finds nothing proves nothing until it was seen to find something. Each breakage
is one rule less; what has to be found is, and nothing that does not follow from it.
"""

import pytest

from tests.laboratory.append_orders import ListOrders, order_findings
from tests.laboratory.breakages import MUTANTS
from tests.laboratory.check import check_history
from tests.laboratory.dependencies import cycle_findings, dependencies_of
from tests.laboratory.history import History, Outcome, Workload
from tests.laboratory.interleaving import interleave
from tests.laboratory.invariants import write_skews

TRANSACTIONS = 600
BREAKAGE_SEEDS_MAX = 6
SEEDS_A_TEST = 10
SKEW_SEEDS = 3
FORK_SEEDS_MAX = 20
LISTS = Workload("append")


def codes(history: History) -> set[str]:
    """What is found."""
    return {finding.code for finding in check_history(history)}


def seen_by_clients(history: History, *, serializable: bool) -> set[str]:
    """What the lists alone show, whatever members claim."""
    orders = ListOrders(history, LISTS)
    findings = cycle_findings(dependencies_of(orders), serializable=serializable)
    return {finding.code for finding in (*order_findings(orders), *findings)}


@pytest.mark.parametrize(
    "first_seed",
    [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(SEEDS_A_TEST, 50, 10))],
)
def test_right_histories_have_no_findings(first_seed: int) -> None:
    outcomes = set()
    for seed in range(first_seed, first_seed + SEEDS_A_TEST):
        history = interleave(seed, transactions=TRANSACTIONS, processes=2 + seed % 9)
        assert check_history(history) == [], f"seed {seed}"
        outcomes |= {operation.outcome for operation in history.operations}
    expected = {Outcome.COMMITTED, Outcome.CONFLICT, Outcome.UNAVAILABLE, Outcome.UNKNOWN}
    assert outcomes == expected


def test_a_seed_gives_the_same_history_again() -> None:
    one, other = (interleave(7, transactions=TRANSACTIONS) for _ in range(2))
    assert one == other
    assert one != interleave(8, transactions=TRANSACTIONS)


@pytest.mark.parametrize("seeds", [2, pytest.param(6, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", MUTANTS)
def test_a_breakage_is_found_and_nothing_that_does_not_follow(name: str, seeds: int) -> None:
    """At so many seeds, and at more until all was found that has to be."""
    breakage = MUTANTS[name]
    missing = set(breakage.found)
    for seed in range(BREAKAGE_SEEDS_MAX):
        with breakage.install():
            history = interleave(seed, transactions=TRANSACTIONS)
        found = codes(history)
        assert found, f"seed {seed}: nothing was found"
        assert found <= breakage.found | breakage.follows, f"seed {seed}"
        missing -= found
        if seed + 1 >= seeds and not missing:
            break
    assert not missing


def test_snapshot_isolation_has_write_skew_and_serializability_has_not() -> None:
    """Otherwise nothing would be proved by its absence, which right histories have."""
    snapshot, serializable = Workload("register"), Workload("register", True)
    for seed in range(SKEW_SEEDS):
        workloads = [snapshot, serializable]
        history = interleave(seed, transactions=TRANSACTIONS, workloads=workloads)
        assert list(write_skews(history, snapshot))
        assert not list(write_skews(history, serializable))


def test_snapshot_isolation_is_not_taken_for_serializability() -> None:
    """Lists under snapshot isolation, checked as if they were serializable, have cycles."""
    found = set()
    for seed in range(SKEW_SEEDS):
        history = interleave(seed, transactions=TRANSACTIONS, workloads=[LISTS])
        found |= seen_by_clients(history, serializable=True)
    assert found == {"G2"}


def test_a_fork_of_the_order_is_found_by_what_clients_saw_alone() -> None:
    """No histories, no versions: two clients saw two transactions in opposite orders."""

    def codes_of(seed: int) -> set[str]:
        with MUTANTS["fork-order"].install():
            history = interleave(seed, transactions=1_500, workloads=[LISTS], processes=12)
        return seen_by_clients(history, serializable=False)

    assert any("G-nonadjacent" in codes_of(seed) for seed in range(FORK_SEEDS_MAX))
