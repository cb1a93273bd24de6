"""The last 15 minutes of a group, in steps of `PERIOD_SECONDS`: rates, and how long commits took.

A member takes a sample whether or not somebody looks, so that whoever opens a page sees what came
before. Counters only grow, and a run that begins again begins at zero: two samples are compared
member by member, and one that has less than before counts from zero. Pure.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

PERIOD_SECONDS = 5.0
WINDOW_SECONDS = 900.0
SECONDS_MIN = 1e-3
POINTS_MAX = int(WINDOW_SECONDS / PERIOD_SECONDS)


class Sample(NamedTuple):
    """Counters at one moment."""

    seconds: float
    """Of a clock that never goes back."""
    at_us: int
    """Microseconds since 1970, for people."""
    certified: int
    aborted: int
    """Transactions of the log that conflicted, were too old or refused."""
    bounds: Sequence[float]
    """Upper bounds of durations, in seconds."""
    durations: Mapping[str, Sequence[int]]
    """By member: how many commits took up to each bound, and above all."""


class Point(NamedTuple):
    """A step of a chart; None: not known."""

    at_us: int
    commits_per_second: float | None
    aborts_per_second: float | None
    p50_seconds: float | None
    p99_seconds: float | None


class History:
    """The points of the window."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._before: Sample | None = None
        self.commits_per_second: dict[str, float] = {}
        """Of the clients of each member, in the last step."""

    def add(self, sample: Sample | None, at_us: int) -> None:
        """Adds a point up to a sample; None: this member knows nothing now, which is a gap."""
        before, self._before = self._before, sample
        self.commits_per_second = {}
        if sample is None or before is None:
            if self._points or before is not None:
                self._points.append(Point(at_us, None, None, None, None))
        else:
            self._points.append(between(before, sample))
            seconds = max(sample.seconds - before.seconds, SECONDS_MIN)
            self.commits_per_second = {
                member: sum(increases(before.durations[member], counts)) / seconds
                for member, counts in sample.durations.items()
                if member in before.durations
            }

    def points(self) -> tuple[Point, ...]:
        """Returns the points, the oldest first."""
        return tuple(self._points)


def between(before: Sample, after: Sample) -> Point:
    """Returns the point between two samples."""
    seconds = max(after.seconds - before.seconds, SECONDS_MIN)
    counts = [0] * (len(after.bounds) + 1)
    for member, now in after.durations.items():
        if member not in before.durations:  # What it counted since its start is of another time.
            continue
        for index, more in enumerate(increases(before.durations[member], now)):
            counts[index] += more
    commits, aborts = increases(
        (before.certified, before.aborted), (after.certified, after.aborted)
    )
    return Point(
        after.at_us,
        commits / seconds,
        aborts / seconds,
        quantile(after.bounds, counts, 0.5),
        quantile(after.bounds, counts, 0.99),
    )


def increases(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Returns by how much counters grew; from zero, if they began again.

    >>> increases([4, 5], [4, 7]), increases([4, 5], [1, 6]), increases([], [1, 2])
    ([0, 2], [1, 6], [1, 2])
    """
    if len(before) != len(after) or any(map(int.__gt__, before, after)):
        return list(after)
    return [now - then for then, now in zip(before, after, strict=True)]


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Returns the duration that a share of all counted ones does not exceed; None: there are none.
    Between two bounds it is interpolated; above the last one, it is that.

    >>> quantile([1.0, 2.0, 5.0], [0, 10, 10, 0], 0.75), quantile([1.0], [0, 3], 0.5)
    (3.5, 1.0)
    """
    sums = list(accumulate(counts))
    if not sums[-1]:
        return None
    wanted = share * sums[-1]
    index = next(at for at, total in enumerate(sums) if total >= wanted)
    if index >= len(bounds):
        return bounds[-1]
    below = bounds[index - 1] if index else 0.0
    inside = (wanted - sums[index] + counts[index]) / counts[index]
    return below + (bounds[index] - below) * inside
