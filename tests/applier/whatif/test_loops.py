"""The loops give what the coordinator gives, to the microsecond, in every figure.

The tracer sees the loops as Python runs them; the compiled ones are held to the same runs.
"""

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.engine.coordinator import CoordinatorOptions
from groupcert.applier.schemes import Cause, Ordering
from groupcert.applier.schemes.catalogue import scheme
from groupcert.applier.whatif.loops import compiler, schedule
from groupcert.applier.whatif.loops.compiler import PLAIN, Loops, compiled
from groupcert.applier.whatif.loops.schedule import Schedule, Scheduler, settings_of
from groupcert.applier.whatif.loops.state import pop, push
from groupcert.applier.whatif.scheme_comparison import LINES, Line, bounds, run_line
from groupcert.applier.whatif.simulation import simulate
from groupcert.applier.whatif.workload import Costs, Workload, load
from tests.applier.whatif.streams import Source, stream, workloads

BOTH_ORDERS = ("logical-clock", "commit-parent", "database", "jobs")
WORKERS = (1, 2, 3, 7, 16)


def stream_of(seed: int, entries: int) -> Workload:
    """A random stream: of few rows or many, in a few domains, with all there is to a header."""
    chance, source = random.Random(seed), Source()
    rows, works = chance.choice([1, 5, 40, 1_000]), []
    for _ in range(entries):
        if chance.random() < 0.03:
            works.append(source.view_change())
            continue
        count = chance.choice([0, 1, 1, 1, 1, 2, 3, 6])
        written = {
            f"d{chance.randrange(3)}.t{chance.randrange(3)}/{chance.randrange(rows)}"
            for _ in range(count)
        }
        works.append(
            source.transaction(
                sorted(written),
                duration_us=chance.randrange(12),
                domain_id=chance.randrange(3),
                commit_parent=chance.randrange(4),
                interval=chance.randrange(1, 9),
            )
        )
    workload = load(works, Costs(commit_us=chance.choice([0, 1, 5])))
    workload.group(chance.choice([1, 2, 5]))
    return workload


def check(line: Line, loops: Loops) -> None:
    """Compares eight streams under a line."""
    for seed in range(8):
        workload = stream_of(seed, 3 + 40 * (seed % 4))
        scheduler = Scheduler(workload, loops)
        for workers in WORKERS:
            expected = Schedule.of(run_line(workload, line, workers))
            assert scheduler.schedule(line, workers) == expected, (seed, workers)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.label)
def test_a_loop_gives_what_the_coordinator_gives(line: Line) -> None:
    check(line, PLAIN)


@pytest.mark.slow
@pytest.mark.in_turns
def test_compiled_loops_give_what_the_coordinator_gives(tmp_path: Path) -> None:
    for line in LINES:
        check(line, compiled(tmp_path))
    assert list(tmp_path.rglob("engine.run*.nbc")), "the next process loads it"


@given(workload=workloads(), line=st.sampled_from(LINES), workers=st.integers(1, 9))
def test_loops_and_coordinator_agree_on_any_stream(
    workload: Workload, line: Line, workers: int
) -> None:
    expected = Schedule.of(run_line(workload, line, workers))
    assert Scheduler(workload).schedule(line, workers) == expected


@pytest.mark.parametrize(
    "line", [line for line in LINES if line.scheme in BOTH_ORDERS], ids=lambda line: line.label
)
@pytest.mark.parametrize("ordered", [True, False])
def test_they_agree_with_and_without_the_order_of_commits(line: Line, ordered: bool) -> None:
    if line.conflicts in ("ignore", "ordered") and ordered == (line.conflicts == "ignore"):
        return
    order = Ordering.SOURCE if ordered else Ordering.NONE
    for seed in range(6):
        workload = stream_of(seed, 60)
        for workers in (2, 5):
            made = scheme(
                line.scheme,
                conflicts=line.conflicts,
                policy=line.policy,
                preserve_commit_order=ordered,
            )
            assert made.ordering is order
            expected = Schedule.of(simulate(workload, line.stamps, made, workers))
            own = settings_of(line, workers, workload.costs.commit_us)
            chosen = own._replace(ordering=schedule._ORDERINGS[order])
            assert Scheduler(workload).run(line, chosen) == expected


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.label)
@pytest.mark.parametrize(("assigned_max", "group_max"), [(1, 1), (3, 2), (10, 3), (40, 1)])
def test_they_agree_where_little_may_be_assigned_or_committed_at_once(
    line: Line, assigned_max: int, group_max: int
) -> None:
    limits = CoordinatorOptions(
        assigned_transactions_max=assigned_max, group_transactions_max=group_max
    )
    for seed in range(4):
        workload = stream_of(seed, 80)
        for workers in (2, 8):
            run = simulate(workload, line.stamps, line.make(), workers, limits)
            chosen = settings_of(line, workers, workload.costs.commit_us)
            chosen = chosen._replace(assigned_max=assigned_max, group_max=group_max)
            expected = Schedule.of(run)
            if line.scheme not in ("database", "table", "group-commit"):
                expected = replace(expected, full_us=0)
            assert Scheduler(workload).run(line, chosen) == expected, (seed, workers)


def test_they_agree_beyond_what_the_coordinator_holds() -> None:
    """25,000 transactions in two databases, one of them slow: assigned ones reach the limit, and
    the slow one's worker has a full queue.
    """
    lines = [f"{1 + 8 * (number % 2)}us d{number % 2}.t/{number}" for number in range(25_000)]
    workload = stream(*lines, commit_us=1)
    scheduler = Scheduler(workload)
    for line in (Line("database"), Line("group-commit"), Line("jobs", conflicts="merge")):
        run = run_line(workload, line, 3)
        assert scheduler.schedule(line, 3) == Schedule.of(run)
        if line.scheme != "jobs":
            assert run.idle_us[Cause.QUEUE] > 0


def test_they_agree_on_transactions_of_many_databases() -> None:
    workload = stream(
        "3us databases=" + ",".join(f"d{number}" for number in range(17)),
        "2us databases=d1,d2",
        "2us databases=d3",
        "1us databases=d2,d3",
        "2us",
    )
    for workers in WORKERS:
        expected = Schedule.of(run_line(workload, Line("database"), workers))
        assert Scheduler(workload).schedule(Line("database"), workers) == expected


def test_work_too_long_for_compiled_numbers_is_scheduled_by_python() -> None:
    def refuses(*_: object) -> Any:
        raise AssertionError("numbers of 64 bits")

    workload = stream("9000000000000us d.t/1", "9000000000000us d.t/1")
    scheduler = Scheduler(workload, Loops(refuses, refuses, lambda column: column, True))
    for workers in (1, 2):
        assert scheduler.schedule(Line("jobs"), workers).makespan_us == 18_000_000_000_000


def test_one_worker_takes_the_same_sums_under_all_lines_but_those_that_divide_or_merge() -> None:
    workload = stream_of(3, 200)
    scheduler = Scheduler(workload)
    shared = scheduler.schedule(Line("logical-clock"), 1)
    assert shared.makespan_us == bounds(workload).serial_us
    for line in LINES:
        alike = line.scheme != "table" and line.conflicts != "merge"
        assert (scheduler.schedule(line, 1) is shared) == alike


def test_nothing_to_schedule_takes_no_time() -> None:
    for line in LINES:
        assert Scheduler(stream()).schedule(line, 3).makespan_us == 0


@given(st.lists(st.integers(0, 20), max_size=30))
def test_a_heap_gives_the_smallest_first(keys: list[int]) -> None:
    held, values, count = [0] * len(keys), [0] * len(keys), 0
    for place, key in enumerate(keys):
        count = push(held, values, count, key, place)
    popped = []
    while count:
        popped.append((held[0], values[0]))
        count = pop(held, values, count)
    assert [key for key, _ in popped] == sorted(keys)
    assert all(keys[place] == key for key, place in popped)


def test_the_digest_is_that_of_every_source_that_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = compiler.digest()
    assert before == compiler.digest()
    monkeypatch.setattr(compiler, "_MODULES", compiler._MODULES[1:])
    assert before != compiler.digest()


def test_views_of_compiled_loops_share_the_memory() -> None:
    column = array("Q", [1, 2**64 - 1])
    seen: Sequence[int] = compiled(None).view(column)
    assert (seen[0], seen[1]) == (1, -1)
    column[0] = 7
    assert seen[0] == 7
