"""Windows of a long stream: what held the workers back there, and whether the loops are right.

The loops schedule the whole stream and hardly know causes. The coordinator schedules windows of it,
each as a stream of its own: causes are taken from there, and on each window both have to give the
same in every figure. So a rule that the loops repeat wrongly is found where it is used, too.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ...schemes import Cause
from ..scheme_comparison import Line
from ..simulation import Run
from .schedule import Schedule

WINDOW_ENTRIES = 2_048
WINDOWS = 8
"""A stream that is no longer than all windows is scheduled whole by the coordinator."""


class SchedulesDiffer(AssertionError):
    """The loops and the coordinator gave different schedules of a window: a bug of this package."""


def windows_of(entries: int) -> tuple[range, ...]:
    """Returns the windows of a stream, at equal distances from its begin to its end; none if the
    coordinator schedules all of it.

    >>> windows_of(16_384), windows_of(20_000)[:2]
    ((), (range(0, 2048), range(2564, 4612)))
    """
    if entries <= WINDOWS * WINDOW_ENTRIES:
        return ()
    last = entries - WINDOW_ENTRIES
    starts = [last * number // (WINDOWS - 1) for number in range(WINDOWS)]
    return tuple(range(start, start + WINDOW_ENTRIES) for start in starts)


def check_window(line: Line, window: range, run: Run, schedule: Schedule) -> None:
    """Compares what the coordinator and the loops gave of a window.

    Raises:
        SchedulesDiffer: They gave different figures.
    """
    by_coordinator = Schedule.of(run)
    if by_coordinator == schedule:
        return
    other = asdict(schedule)
    figures = [
        f"{name} {value} and {other[name]}"
        for name, value in asdict(by_coordinator).items()
        if value != other[name]
    ]
    raise SchedulesDiffer(
        f"under {line.label} with {run.workers} workers, entries {window.start + 1:,} to "
        f"{window.stop:,} of the stream take {run.makespan_us:,} us by the coordinator, and "
        f"{schedule.makespan_us:,} us by the loops that schedule the whole stream (differing: "
        f"{'; '.join(figures)}). This is a bug of groupcert: no result is given"
    )


def combined(schedule: Schedule, workers: int, windows: Sequence[Run]) -> Run:
    """Returns the run of a whole stream. Its times are the loops', but of idle time they know only
    at which nothing was left or a queue was full: the rest bears causes as it does in the windows.
    How often and how long something was held is counted there alone.
    """
    held_us = schedule.idle_us - schedule.left_us - schedule.full_us
    shares: Counter[Cause] = Counter()
    for run in windows:
        shares.update({cause: us for cause, us in run.idle_us.items() if cause is not None})
    # Of that the loops know the time (`full_us`), and a window is too short for a long queue.
    del shares[Cause.QUEUE]
    idle_us: dict[Cause | None, int] = {}
    idle_us.update(_divided(held_us, shares).items())
    if schedule.left_us:
        idle_us[None] = schedule.left_us
    if schedule.full_us:
        idle_us[Cause.QUEUE] = schedule.full_us
    return Run(
        workers=workers,
        makespan_us=schedule.makespan_us,
        executing_us=schedule.executing_us,
        waiting_us=schedule.waiting_us,
        committing_us=schedule.committing_us,
        idle_us=idle_us,
        held_us=sum([Counter(run.held_us) for run in windows], Counter()),
        holds=sum([Counter(run.holds) for run in windows], Counter()),
        fallbacks=sum([Counter(run.fallbacks) for run in windows], Counter()),
        jobs=schedule.jobs,
        commit_groups=schedule.commit_groups,
        width_max=schedule.width_max,
        width_bucket_us=schedule.width_bucket_us,
        widths_us=schedule.widths_us,
        overtakers=schedule.overtakers,
        unseen_us=0 if shares else held_us,
    )


def _divided(whole: int, shares: Mapping[Cause, int]) -> dict[Cause, int]:
    """Returns a whole divided in the proportion of shares, without remainder.

    >>> list(_divided(10, {Cause.CLOCK: 1, Cause.ALONE: 2}).values())
    [3, 7]
    """
    total = sum(shares.values())
    before, parts = 0, {}
    for cause, share in shares.items():
        # By sums so far: what is rounded off one part is in the next, and all add up.
        parts[cause] = whole * (before + share) // total - whole * before // total
        before += share
    return parts
