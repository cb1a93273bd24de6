"""What holds for every scheme, every stream and every number of workers."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupcert.applier.schemes import Consistency
from groupcert.applier.whatif import scheme_comparison
from groupcert.applier.whatif.scheme_comparison import (
    LINES,
    WINDOW_ENTRIES,
    WINDOWS,
    Line,
    bounds,
    chosen_lines,
    parse_workers,
    run_line,
    sample_of,
    speedup,
    window_starts,
)
from groupcert.applier.whatif.workload import Stamps, Workload
from groupcert.certifier.errors import InvalidSetting
from tests.applier.whatif.run_bounds import bound_us, execution_path_us
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
    run = run_line([workload], line, workers)
    assert run.makespan_us >= bound_us(workload, run)
    busy_us = run.executing_us + run.processor_us + run.waiting_us + run.committing_us
    assert busy_us + sum(run.idle_us.values()) == workers * run.makespan_us
    assert sum(run.widths_us) == run.executing_us
    assert run.width_max <= workers
    assert not run.overtakers or line.conflicts in BLIND
    assert run.overtakers != 0 or run.makespan_us >= execution_path_us(workload)


@settings(max_examples=40)
@given(
    workload=workloads(), line=st.sampled_from([one for one in LINES if one.conflicts != "merge"])
)
def test_one_worker_is_serial(workload: Workload, line: Line) -> None:
    run = run_line([workload], line, 1)
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
    one = run_line([workload], Line("logical-clock", policy="at-most-one"), workers)
    other = run_line([workload], Line("logical-clock", policy="first-available"), workers)
    assert one.makespan_us == other.makespan_us


@pytest.mark.parametrize("line", FINE, ids=lambda line: line.label)
def test_independent_transactions_reach_the_bound(line: Line) -> None:
    workload = stream(*(f"7us d{number}.t/1" for number in range(64)))
    for workers in (1, 2, 4, 8):
        assert run_line([workload], line, workers).makespan_us == 7 * 64 // workers


@pytest.mark.parametrize(
    "line", [one for one in LINES if one.conflicts not in BLIND], ids=lambda line: line.label
)
def test_a_chain_is_as_fast_with_any_number_of_workers(line: Line) -> None:
    workload = stream(*(f"{number + 1}us d.t/1" for number in range(20)))
    makespans = {run_line([workload], line, workers).makespan_us for workers in (1, 3, 16)}
    assert makespans == {sum(range(1, 21))} == {bounds(workload).path.length_us}


def test_a_stream_longer_than_what_the_coordinator_holds_is_fed_to_its_end() -> None:
    workload = stream(*(f"1us d.t/{number}" for number in range(25_000)))
    run = run_line([workload], Line("logical-clock"), 10)
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
    assert run_line([stream()], Line("rows"), 3).makespan_us == 0


def test_stamps_by_lock_intervals_never_reach_before_the_stream() -> None:
    workload = stream("1us a.t/1 interval=9", "view change", "1us a.t/2 interval=2")
    assert list(workload.stamps(Stamps.LOCK_INTERVALS)) == [(0, 1), (0, 0), (0, 2)]


def test_windows_are_spread_from_the_begin_to_the_end_of_a_long_stream() -> None:
    starts = window_starts(1_000_000)
    assert (len(starts), starts[0], starts[-1] + WINDOW_ENTRIES) == (WINDOWS, 0, 1_000_000)
    assert all(one + WINDOW_ENTRIES < other for one, other in pairwise(starts))


def test_windows_give_what_all_of_a_stream_gives_and_whole_takes_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transactions of two rows, of which one is hot in every tenth."""
    monkeypatch.setattr(scheme_comparison, "WINDOW_ENTRIES", 500)
    monkeypatch.setattr(scheme_comparison, "WINDOWS", 4)
    rows = [f"d.t/{number % 10 and number} d.t/-{number}" for number in range(1, 5_001)]
    workload = stream(*(f"{20 + number % 7}us {row}" for number, row in enumerate(rows)))
    sample, whole = sample_of(workload), sample_of(workload, whole=True)
    assert (sample.entries, whole.entries) == (2_000, 5_000)
    for line in (Line("logical-clock"), Line("jobs", conflicts="graph")):
        run, all_of_it = (run_line(each.windows, line, 8) for each in (sample, whole))
        expected = speedup(whole.serial_us, all_of_it.makespan_us)
        assert speedup(sample.serial_us, run.makespan_us) == pytest.approx(expected, rel=0.02)
        assert sample.spread(run) < 0.02
        assert whole.spread(all_of_it) == 0


@given(workload=workloads(), data=st.data())
def test_a_window_is_the_stream_that_it_would_be_by_itself(
    workload: Workload, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(workload)))
    stop = data.draw(st.integers(start, len(workload)))
    part, whole = workload.window(start, stop), workload.dependencies
    assert len(part) == stop - start
    for number in range(len(part)):
        entry = start + number
        assert list(part.items(number)) == list(workload.items(entry))
        assert part.tables(number) == workload.tables(entry)
        assert part.gtid(number) == workload.gtid(entry)
        edges = whole.followed[whole.offsets[entry] : whole.offsets[entry + 1]]
        own = part.dependencies
        followed = own.followed[own.offsets[number] : own.offsets[number + 1]]
        assert list(followed) == [each - start for each in edges if each >= start]
    stamped = list(workload.stamps(Stamps.WRITE_SETS))[start:stop]
    assert list(part.stamps(Stamps.WRITE_SETS)) == stamped


@settings(max_examples=40)
@given(workload=workloads(), line=ALL_LINES, workers=st.integers(1, 5))
def test_windows_run_one_after_the_other(workload: Workload, line: Line, workers: int) -> None:
    middle = len(workload) // 2
    windows = [workload.window(0, middle), workload.window(middle, len(workload))]
    run = run_line(windows, line, workers)
    alone = [run_line([window], line, workers) for window in windows]
    assert run.windows == tuple(one.windows[0] for one in alone)
    for name in ("makespan_us", "jobs", "executing_us", "commit_groups"):
        assert getattr(run, name) == sum(getattr(one, name) for one in alone)
    assert Counter(run.idle_us) == Counter(alone[0].idle_us) + Counter(alone[1].idle_us)
