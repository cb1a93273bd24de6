"""C3 of WL#7165 on the examples of WL#8440: which transactions start together.

Each example is the stamps of its transactions; the waves are what starts together when each wave
is committed before the scheme is asked again.
"""

from collections import deque

import pytest
from hypothesis import given

from applier.job import Job
from applier.relay_queue import RelayEntry
from applier.schemes.logical_clock import LogicalClock
from certifier.gtid import Gtid
from tests.applier.histories import GROUP, Step, histories, stamped

EXAMPLES = {
    "EX3": (
        [(1, 2), (1, 3), (2, 4), (1, 5), (1, 6), (6, 7), (1, 8), (1, 9)],
        [["T1", "T2"], ["T3", "T4", "T5"], ["T6", "T7", "T8"]],
    ),
    "EX4, no write set": (
        [(1, 2), (2, 3), (2, 4), (4, 5), (5, 6)],
        [["T1"], ["T2", "T3"], ["T4"], ["T5"]],
    ),
    "EX6, garbage collection after T2": (
        [(1, 2), (1, 3), (3, 4), (3, 5)],
        [["T1", "T2"], ["T3", "T4"]],
    ),
    "EX7, view change before T3": (
        [(1, 2), (1, 3), (0, 0), (1, 4)],
        [["T1", "T2"], ["T3"], ["T4"]],
    ),
    "WL#7165, fall back to sequential": (
        [(0, 0), (0, 0), (1, 2), (1, 3)],
        [["T1"], ["T2"], ["T3", "T4"]],
    ),
}


def entry(number: int, stamps: tuple[int, int], local: bool = False) -> RelayEntry:
    return RelayEntry(number, number, Gtid(GROUP, number), *stamps, local, b"")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_in_its_waves(name: str) -> None:
    stamps, expected = EXAMPLES[name]
    pending = deque(entry(number, pair) for number, pair in enumerate(stamps, 1))
    scheme = LogicalClock()
    waves = []
    while pending:
        taken = scheme.take(pending, 100)
        waves.append([f"T{one.version}" for one in taken])
        job: Job[None] = Job(taken, 0)
        scheme.started(job)
        assert not pending or scheme.take(pending, 100) == []
        scheme.committed(job)
        scheme.check_invariants()
    assert waves == expected


def test_a_transaction_waits_for_the_oldest_that_executes_only() -> None:
    scheme = LogicalClock()
    pending = deque([entry(1, (1, 2)), entry(2, (1, 3)), entry(3, (2, 4)), entry(4, (3, 5))])
    jobs: list[Job[None]] = [Job([one], 0) for one in scheme.take(pending, 100)]
    assert len(jobs) == 2
    for job in jobs:
        scheme.started(job)
    scheme.committed(jobs[1])
    assert scheme.take(pending, 100) == []
    scheme.committed(jobs[0])
    assert [one.version for one in scheme.take(pending, 100)] == [3, 4]


def test_local_transactions_neither_wait_nor_are_waited_for() -> None:
    scheme = LogicalClock()
    pending = deque([entry(1, (1, 2)), entry(2, (0, 0), local=True), entry(3, (2, 3))])
    taken = scheme.take(pending, 100)
    assert [one.version for one in taken] == [1, 2]
    first: Job[None] = Job(taken[:1], 0)
    local: Job[None] = Job(taken[1:], 0)
    scheme.started(first)
    scheme.started(local)
    assert scheme.assigned.oldest == 2
    scheme.committed(first)
    assert [one.version for one in scheme.take(pending, 100)] == [3]
    scheme.committed(local)
    assert scheme.assigned.low_water_mark == 2


def test_no_more_is_taken_than_was_asked_for() -> None:
    pending = deque(entry(number, (1, number + 1)) for number in range(1, 6))
    taken = LogicalClock().take(pending, 3)
    assert ([one.version for one in taken], len(pending)) == ([1, 2, 3], 2)


@given(histories)
def test_what_is_taken_is_c3_word_for_word(history: list[Step]) -> None:
    """Against the rule written down naively: nobody who executes may be at or before
    `last_committed`.
    """
    entries = [one.entry for one in stamped(history)]
    pending = deque(entries)
    scheme = LogicalClock()
    while pending:
        head = list(pending)
        taken = scheme.take(pending, 100)
        executing: list[RelayEntry] = []
        for one in head:
            alone = not one.local and not one.sequence_number
            if not one.local:
                numbers = [other.sequence_number for other in executing if not other.local]
                if any(number <= one.last_committed for number in numbers):
                    break
                if alone and executing:
                    break
            executing.append(one)
            if alone:
                break
        assert taken == executing
        job: Job[None] = Job(taken, 0)
        scheme.started(job)
        scheme.committed(job)
