"""Windows: which they are, what is taken from them, and that they find loops that are wrong."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.schemes import Cause
from groupcert.applier.whatif.loops import job_list, stamp_rules, windows
from groupcert.applier.whatif.loops.schedule import Schedule, Scheduler
from groupcert.applier.whatif.loops.windows import (
    WINDOW_ENTRIES,
    WINDOWS,
    SchedulesDiffer,
    check_window,
    combined,
    windows_of,
)
from groupcert.applier.whatif.scheme_comparison import LINES, Line, run_line
from groupcert.applier.whatif.workload import Stamps, Workload
from tests.applier.whatif.streams import stream, workloads
from tests.applier.whatif.test_loops import stream_of


def test_windows_are_spread_from_the_begin_to_the_end() -> None:
    found = windows_of(1_000_000)
    assert (len(found), {len(window) for window in found}) == (WINDOWS, {WINDOW_ENTRIES})
    assert (found[0].start, found[-1].stop) == (0, 1_000_000)
    assert all(one.stop < other.start for one, other in pairwise(found))


def test_what_all_windows_would_cover_is_scheduled_whole() -> None:
    assert windows_of(WINDOWS * WINDOW_ENTRIES) == ()
    assert len(windows_of(WINDOWS * WINDOW_ENTRIES + 1)) == WINDOWS


@given(workload=workloads(), data=st.data())
def test_a_window_is_the_stream_that_it_would_be_by_itself(
    workload: Workload, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(workload)))
    stop = data.draw(st.integers(start, len(workload)))
    part = workload.window(start, stop)
    assert len(part) == stop - start
    for number in range(len(part)):
        whole = start + number
        assert list(part.items(number)) == list(workload.items(whole))
        assert part.tables(number) == workload.tables(whole)
        assert part.gtid(number) == workload.gtid(whole)
        edges = workload.dependencies.followed[
            workload.dependencies.offsets[whole] : workload.dependencies.offsets[whole + 1]
        ]
        own = part.dependencies
        followed = own.followed[own.offsets[number] : own.offsets[number + 1]]
        assert list(followed) == [each - start for each in edges if each >= start]
    stamped = list(workload.stamps(Stamps.WRITE_SETS))[start:stop]
    assert list(part.stamps(Stamps.WRITE_SETS)) == stamped
    for line in LINES:
        expected = Schedule.of(run_line(part, line, 3))
        assert Scheduler(part).schedule(line, 3) == expected


def test_loops_and_coordinator_that_agree_are_left_alone() -> None:
    workload = stream_of(1, 60)
    for line in LINES:
        run = run_line(workload, line, 3)
        check_window(line, range(60), run, Scheduler(workload).schedule(line, 3))


def test_a_mutant_of_the_loops_is_found_and_told_with_both_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the clock: everything may start together."""
    workload = stream("5us d.t/1", "5us d.t/1", "5us d.t/1")
    line = Line("logical-clock")
    run = run_line(workload, line, 4)
    monkeypatch.setattr(stamp_rules, "_startable", lambda columns, oldest, head, stop: stop)
    wrong = Scheduler(workload).schedule(line, 4)
    told = re.escape(
        "under logical-clock write sets with 4 workers, entries 2,049 to 2,052 of the stream take "
        "15 us by the coordinator, and 5 us by the loops"
    )
    with pytest.raises(SchedulesDiffer, match=told):
        check_window(line, range(2_048, 2_052), run, wrong)


def test_a_mutant_that_leaves_the_makespan_is_found_by_other_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the graph: no job merges more than one transaction."""
    workload = stream("5us d.t/1", "5us d.t/1", "5us d.t/1")
    line = Line("jobs", conflicts="merge")
    run = run_line(workload, line, 1)
    monkeypatch.setattr(job_list, "_is_alone", lambda columns, entry: entry > 0)
    with pytest.raises(SchedulesDiffer, match=r"jobs 1 and 3"):
        check_window(line, range(3), run, Scheduler(workload).schedule(line, 1))


def test_idle_time_bears_the_causes_of_the_windows_and_adds_up() -> None:
    workload = stream_of(2, 400)
    parts = [workload.window(start, start + 50) for start in (0, 170, 350)]
    for line in LINES:
        whole = Scheduler(workload).schedule(line, 4)
        runs = [run_line(part, line, 4) for part in parts]
        run = combined(whole, 4, runs)
        busy_us = run.executing_us + run.waiting_us + run.committing_us
        idle_us = sum(run.idle_us.values()) + run.unseen_us
        assert busy_us + idle_us == 4 * run.makespan_us
        assert run.idle_us.get(None, 0) == whole.left_us
        assert run.overtakers == whole.overtakers
        for cause, held_us in run.held_us.items():
            assert held_us == sum(one.held_us.get(cause, 0) for one in runs)


def test_a_full_queue_is_known_of_the_whole_stream() -> None:
    workload = stream(*(f"{1 + 9 * (number % 2)}us d{number % 2}.t/1" for number in range(20_000)))
    whole = Scheduler(workload).schedule(Line("database"), 2)
    window = workload.window(0, 20)
    run = combined(whole, 2, [run_line(window, Line("database"), 2)])
    assert run.idle_us[Cause.QUEUE] == whole.full_us > 0
    assert run.unseen_us == 0


def test_idle_time_that_no_window_explains_is_told_as_such() -> None:
    workload = stream("9us d.t/1", "9us d.t/1", "9us d.t/2", "9us d.t/2")
    line = Line("logical-clock")
    run = combined(
        Scheduler(workload).schedule(line, 2), 2, [run_line(workload.window(1, 3), line, 2)]
    )
    assert run.unseen_us == 9
    assert run.idle_us == {None: 9}
    assert windows._divided(0, {}) == {}
