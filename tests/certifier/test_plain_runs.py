"""Plain transactions certified together, against the same ones one after the other.

Method: two certifiers read the same random history; one gets each message's transactions together,
the other one by one. Every outcome and all of the state must be equal: versions, GTIDs, stamps,
what collections purge, and the digest.
"""

from collections import deque
from collections.abc import Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupcert.certifier import core, plain_runs
from groupcert.certifier.certification_info import TOGETHER_MIN
from groupcert.certifier.certifier_state import dump
from groupcert.certifier.core import Certifier
from groupcert.certifier.plain_runs import RUN_MAX, PlainTransactions, certify_plain
from groupcert.certifier.records import (
    GarbageCollection,
    Outcome,
    Transaction,
    Verdict,
    ViewChange,
)
from tests.certifier.histories import options

Step = tuple[str, list[tuple[int, list[int]]]] | int | str
ITEMS = st.one_of(st.integers(0, 12), st.integers(13, 2**64 - 1))
TRANSACTION = st.tuples(st.integers(-9, 2), st.lists(ITEMS, max_size=3))
"""How far a snapshot is from the newest version, and a write set."""
MESSAGE = st.tuples(st.sampled_from(("m1", "m2")), st.lists(TRANSACTION, min_size=1, max_size=12))
STEP = st.one_of(MESSAGE, st.integers(0, 9), st.sampled_from(("joins", "view")))
"""A message, a collection that leaves so many versions, or a view change."""


def state_of(certifier: Certifier) -> object:
    """All that later decisions depend on."""
    window = certifier.window
    return (
        certifier.digest(),
        dump(certifier),
        sorted(certifier.info.entries()),
        window.dump(window.first_version),
        (certifier.clock.last_committed_global, certifier.clock.sequence_number),
        certifier.blocks.state(),
        certifier.purged_total,
    )


def result_of(steps: Generator[None, None, list[Outcome]]) -> list[Outcome]:
    """The outcomes, when all steps are made."""

    def all_steps() -> Generator[None]:
        outcomes.extend((yield from steps))

    outcomes: list[Outcome] = []
    deque(all_steps(), maxlen=0)
    return outcomes


def one_by_one(certifier: Certifier, plain: PlainTransactions) -> list[Outcome]:
    """The outcomes of transactions that are certified by themselves."""
    position, origin, local, snapshots, write_sets = plain
    return [
        certifier.certify(Transaction(place, origin, snapshot, write_set, (), None, local))
        for place, (snapshot, write_set) in enumerate(
            zip(snapshots, write_sets, strict=True), position
        )
    ]


@given(
    st.lists(STEP, max_size=25),
    st.sampled_from(("close", "tight")),
    st.sampled_from((0, 1, 3)),
    st.sampled_from((1, 4, 1_000)),
    st.sampled_from((1, TOGETHER_MIN)),
)
@settings(max_examples=300)
def test_outcomes_and_state_are_those_of_one_after_the_other(
    steps: list[Step], gc_window: str, period: int, block_size: int, together_min: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_runs, "TOGETHER_MIN", together_min)
        check_equal(steps, gc_window, period, block_size)


def check_equal(steps: list[Step], gc_window: str, period: int, block_size: int) -> None:
    """Certifies the messages of a history together, and one transaction after the other."""
    made = options(gc_window=gc_window, period=period, step=2, block_size=block_size)
    together, alone = Certifier(made), Certifier(made)
    position = 0
    for step in steps:
        position += 100
        newest = alone.window.newest_version
        if isinstance(step, int):
            stable = max(newest - step, 0)
            for each in (together, alone):
                each.deliver(GarbageCollection(position, stable))
        elif isinstance(step, str):
            for each in (together, alone):
                each.deliver(ViewChange(position, step == "joins"))
        else:
            origin, transactions = step
            plain = PlainTransactions(
                position,
                origin,
                origin == "m1",
                [max(newest + back, 0) for back, _ in transactions],
                [items for _, items in transactions],
            )
            assert result_of(certify_plain(together, plain)) == one_by_one(alone, plain)
        assert state_of(together) == state_of(alone)
        together.check_invariants()


def test_runs_cross_segments_of_the_window() -> None:
    together, alone = Certifier(options()), Certifier(options())
    for start in range(0, 10_000, 2_500):
        items = [[1 + start + index] for index in range(2_500)]
        plain = PlainTransactions(start, "m2", False, [start] * 2_500, items)
        assert len(list(certify_plain(together, plain))) == 2_500 // RUN_MAX, "steps between runs"
        assert len(one_by_one(alone, plain)) == 2_500
    assert state_of(together) == state_of(alone)


def test_transactions_that_write_the_items_of_others_depend_on_them() -> None:
    together, alone = Certifier(options()), Certifier(options())
    items = [[each] for each in range(1, TOGETHER_MIN + 1)]
    for round_of_all in range(3):
        newest = alone.window.newest_version
        plain = PlainTransactions(round_of_all * 1_000, "m2", False, [newest] * len(items), items)
        found = result_of(certify_plain(together, plain))
        assert found == one_by_one(alone, plain)
        assert {each.verdict for each in found} == {Verdict.CERTIFIED}
    assert state_of(together) == state_of(alone)


@pytest.mark.parametrize("first", [(-TOGETHER_MIN, [1]), (0, [201]), (2, [300]), (0, [])])
def test_with_one_that_may_not_pass_all_are_looked_at_one_by_one(
    first: tuple[int, list[int]],
) -> None:
    """It lost against the message before, writes an item of another one, comes from the future, or
    writes nothing.
    """
    before, others = ([(0, [start + each]) for each in range(TOGETHER_MIN)] for start in (1, 201))
    check_equal([("m2", before), ("m1", [first, *others])], "close", 0, 1_000)


def test_a_collection_makes_its_steps_between_those_of_a_message() -> None:
    message = ("m2", [(0, [each]) for each in range(1, 3 * TOGETHER_MIN)])
    check_equal([message, 0, message, message], "close", 3, 1_000)


def test_a_large_transaction_takes_steps_of_its_own() -> None:
    certifier = Certifier(options())
    items = list(range(1, core.STEP_ITEMS + 2))
    plain = PlainTransactions(1, "m2", False, [0, 0, 0], [[1 << 40], items, [1]])
    steps = certify_plain(certifier, plain)
    assert len(list(steps)) > 1
    assert certifier.window.newest_version == 2, "the third one lost against the second"


def test_the_conflict_of_one_leaves_the_others_together() -> None:
    certifier = Certifier(options())
    plain = PlainTransactions(1, "m2", False, [0, 0, 0, 0], [[1], [1], [2], [2]])
    outcomes = result_of(certify_plain(certifier, plain))
    lost = Verdict.CONFLICT
    assert [each.verdict for each in outcomes] == [1, lost, 1, lost]
    assert outcomes[1].conflict is not None
    assert outcomes[1].conflict.winner_gtid == outcomes[0].gtid
