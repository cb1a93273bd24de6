"""What holds for every scheme, every stream and every number of workers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupcert.applier.schemes import Consistency
from groupcert.applier.whatif.scheme_comparison import (
    LINES,
    Line,
    bound_of,
    bounds,
    chosen_lines,
    parse_workers,
    run_line,
)
from groupcert.applier.whatif.workload import Stamps, Workload
from groupcert.certifier.errors import InvalidSetting
from tests.applier.whatif.streams import stream, workloads

ALL_LINES = st.sampled_from(LINES)
BLIND = ("ignore", "ordered")
FINE = (
    Line("logical-clock"),
    Line("logical-clock", policy="first-available"),
    Line("database"),
    Line("table"),
    Line("jobs", conflicts="ignore"),
    Line("jobs", conflicts="ordered"),
    Line("jobs", conflicts="barrier"),
    Line("jobs", conflicts="graph"),
)


@given(workload=workloads(), line=ALL_LINES, workers=st.integers(1, 9))
def test_no_run_beats_its_bound_and_all_time_is_accounted_for(
    workload: Workload, line: Line, workers: int
) -> None:
    """One that keeps dependencies is never below the critical path."""
    limits = bounds(workload)
    run = run_line(workload, line, workers)
    bound_us = bound_of(run, limits, workload)
    assert run.makespan_us >= bound_us
    busy_us = run.executing_us + run.waiting_us + run.committing_us
    assert busy_us + sum(run.idle_us.values()) == workers * run.makespan_us
    assert sum(run.widths_us) == run.executing_us
    assert run.width_max <= workers
    assert not run.overtakers or line.conflicts in BLIND
    assert run.overtakers != 0 or run.makespan_us >= limits.execution_path_us


@settings(max_examples=40)
@given(
    workload=workloads(), line=st.sampled_from([one for one in LINES if one.conflicts != "merge"])
)
def test_one_worker_is_serial(workload: Workload, line: Line) -> None:
    run = run_line(workload, line, 1)
    if run.overtakers is None:
        assert run.makespan_us >= bounds(workload).serial_us
    else:
        assert run.makespan_us == bounds(workload).serial_us
    assert run.width_max <= 1


@settings(max_examples=40)
@given(workload=workloads(), workers=st.integers(1, 5))
def test_both_policies_of_the_logical_clock_schedule_the_same_where_handing_over_takes_no_time(
    workload: Workload, workers: int
) -> None:
    one = run_line(workload, Line("logical-clock", policy="at-most-one"), workers)
    other = run_line(workload, Line("logical-clock", policy="first-available"), workers)
    assert one.makespan_us == other.makespan_us


@pytest.mark.parametrize("line", FINE, ids=lambda line: line.label)
def test_independent_transactions_reach_the_bound(line: Line) -> None:
    workload = stream(*(f"7us d{number}.t/1" for number in range(64)))
    for workers in (1, 2, 4, 8):
        assert run_line(workload, line, workers).makespan_us == 7 * 64 // workers


@pytest.mark.parametrize(
    "line", [one for one in LINES if one.conflicts not in BLIND], ids=lambda line: line.label
)
def test_a_chain_is_as_fast_with_any_number_of_workers(line: Line) -> None:
    workload = stream(*(f"{number + 1}us d.t/1" for number in range(20)))
    makespans = {run_line(workload, line, workers).makespan_us for workers in (1, 3, 16)}
    assert makespans == {sum(range(1, 21))} == {bounds(workload).path.length_us}


def test_a_stream_longer_than_what_the_coordinator_holds_is_fed_to_its_end() -> None:
    workload = stream(*(f"1us d.t/{number}" for number in range(25_000)))
    run = run_line(workload, Line("logical-clock"), 10)
    assert (run.makespan_us, run.jobs) == (2_500, 25_000)


def test_every_scheme_has_its_lines_and_all_of_them_start() -> None:
    for line in LINES:
        assert line.make().consistency in Consistency
    assert [line.label for line in chosen_lines(["rows", "logical-clock"])] == [
        "logical-clock write sets",
        "logical-clock write sets, first-available",
        "logical-clock lock intervals",
        "rows",
    ]
    assert len({line.label for line in chosen_lines([])}) == len(LINES)


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(InvalidSetting, match=r"writeset.*logical-clock, commit-parent, database"):
        chosen_lines(["writeset"])


@pytest.mark.parametrize("text", ["", "0", "1,,2", "1,-2", "1025", "many", "1.5"])
def test_a_bad_list_of_workers_says_what_is_expected(text: str) -> None:
    with pytest.raises(InvalidSetting, match="numbers from 1 to 1024 with commas"):
        parse_workers(text)


def test_lists_of_workers_are_ascending_and_each_once() -> None:
    assert parse_workers("16, 2,1,2") == (1, 2, 16)


def test_nothing_to_do_has_bounds_of_nothing() -> None:
    limits = bounds(stream())
    assert (limits.serial_us, limits.path.length_us, limits.least_us(4)) == (0, 0, 0)
    assert run_line(stream(), Line("rows"), 3).makespan_us == 0


def test_stamps_by_lock_intervals_never_reach_before_the_stream() -> None:
    workload = stream("1us a.t/1 interval=9", "view change", "1us a.t/2 interval=2")
    assert list(workload.stamps(Stamps.LOCK_INTERVALS)) == [(0, 1), (0, 0), (0, 2)]
