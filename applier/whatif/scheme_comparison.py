"""A comparison: every scheme over the same workload, with each number of workers.

A line of the comparison is a scheme, its settings and the stamps it reads. Of a long workload the
lines run windows, from its begin to its end. Every run is a pure function of the windows, the line
and the number of workers, so it does not matter where it is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ...certifier.errors import InvalidSetting
from ..schemes import Scheme
from ..schemes.catalogue import SCHEMES, scheme
from .dependencies import CriticalPath, critical_path
from .simulation import Run, simulate
from .workload import Stamps, Workload

WORKERS_MAX = 1_024
WINDOW_ENTRIES = 4_096
"""So long that it hardly counts that the workers of a window begin and end together."""
WINDOWS = 6
"""A stream that is no longer than all windows is scheduled whole."""
LEAD_ENTRIES = 256
"""What is read before a window of a stream that is not read whole: whatever overlaps with the begin
of the window is in it.
"""


class Line(NamedTuple):
    """One line of the comparison; settings that are None have the scheme's default."""

    scheme: str
    conflicts: str | None = None
    policy: str | None = None
    stamps: Stamps = Stamps.WRITE_SETS

    @property
    def label(self) -> str:
        """Name of the line.

        >>> Line("jobs", conflicts="graph").label
        'jobs graph'
        >>> Line("logical-clock", stamps=Stamps.LOCK_INTERVALS, policy="first-available").label
        'logical-clock lock intervals, first-available'
        """
        clock = self.stamps.value if self.scheme == "logical-clock" else None
        settings = (self.conflicts, clock, self.policy)
        return " ".join([self.scheme, ", ".join(filter(None, settings))]).strip()

    def make(self) -> Scheme:
        """Returns a new scheme."""
        return scheme(self.scheme, conflicts=self.conflicts, policy=self.policy)


LINES = (
    Line("logical-clock"),
    Line("logical-clock", policy="first-available"),
    Line("logical-clock", stamps=Stamps.LOCK_INTERVALS),
    Line("commit-parent"),
    Line("group-commit"),
    Line("database"),
    Line("table"),
    Line("jobs", conflicts="ignore"),
    Line("jobs", conflicts="ordered"),
    Line("jobs", conflicts="barrier"),
    Line("jobs", conflicts="graph"),
    Line("jobs", conflicts="merge"),
    Line("rows"),
)


def chosen_lines(schemes: Sequence[str]) -> tuple[Line, ...]:
    """Returns the lines of the named schemes, all of them for none.

    Raises:
        InvalidSetting: there is no such scheme.
    """
    for name in schemes:
        if name not in SCHEMES:
            raise InvalidSetting(name="scheme", value=name, expected=f"one of {', '.join(SCHEMES)}")
    return tuple(line for line in LINES if not schemes or line.scheme in schemes)


def parse_workers(text: str) -> tuple[int, ...]:
    """Returns the numbers of workers in a list with commas, ascending.

    Raises:
        InvalidSetting: it is no such list, or a number is not within the limits.

    >>> parse_workers("4,1,2")
    (1, 2, 4)
    """
    numbers = {int(word) if word.strip().isdecimal() else 0 for word in text.split(",")}
    if not all(1 <= number <= WORKERS_MAX for number in numbers):
        expected = f"numbers from 1 to {WORKERS_MAX} with commas, such as 1,2,4,8,16"
        raise InvalidSetting(name="workers", value=text, expected=expected)
    return tuple(sorted(numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of whoever commits each transaction of a workload by itself, in microseconds.

    `serial_us`: one worker that commits each transaction alone. `processors_us`: what all of them
    need of the processors. `path`: the critical path, with the commits on it.
    """

    serial_us: int
    processors_us: int
    path: CriticalPath

    def least_us(self, workers: int) -> int:
        """Returns the bound of the workload itself: max(work / workers, processors, critical
        path).
        """
        return max(-(-self.serial_us // workers), self.shortest_us)

    @property
    def shortest_us(self) -> int:
        """The bound with any number of workers."""
        return max(self.processors_us, self.path.length_us)


def bounds(workload: Workload) -> Bounds:
    """Returns the bounds of a workload. Cost: O(edges)."""
    durations_us, costs = workload.durations_us, workload.costs
    lengths_us = [duration_us + costs.least_us for duration_us in durations_us]
    execution_us = sum(durations_us)
    return Bounds(
        serial_us=execution_us + costs.alone_us * len(workload),
        processors_us=costs.processors_us(execution_us, len(workload)),
        path=critical_path(workload.dependencies, lengths_us),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The windows of a stream that are scheduled, and their bounds; or all of it as the only one.

    `whole`: the bounds of all that was read.
    """

    whole: Bounds
    windows: Sequence[Workload]
    limits: Sequence[Bounds]

    @property
    def entries(self) -> int:
        """Entries of all windows."""
        return sum(map(len, self.windows))

    @property
    def serial_us(self) -> int:
        """The time of one worker that commits each transaction of the windows alone."""
        return sum(limits.serial_us for limits in self.limits)

    def least_us(self, workers: int) -> int:
        """Returns the bound of the windows, one after the other."""
        return sum(limits.least_us(workers) for limits in self.limits)

    def spread(self, run: Run) -> float:
        """Returns the largest distance of a window's speed-up from that of the run, in parts of
        it.
        """
        mean = speedup(self.serial_us, run.makespan_us)
        return max(
            abs(speedup(limits.serial_us, part.makespan_us) / mean - 1)
            for part, limits in zip(run.windows, self.limits, strict=True)
        )


def speedup(before_us: int, after_us: int) -> float:
    """Returns the speed-up; 1 if there is no work."""
    return before_us / after_us if after_us else 1


def sample_of(workload: Workload, *, whole: bool = False) -> Sample:
    """Returns the sample of a stream: what was read of it without the leads, if that was windows;
    `whole`: all of it, however long it is.
    """
    limits = bounds(workload)
    if workload.passed:
        stretches = pairwise([*workload.starts, len(workload)])
        places = [(start + LEAD_ENTRIES, stop) for start, stop in stretches]
    elif whole or len(workload) <= WINDOWS * WINDOW_ENTRIES:
        return Sample(whole=limits, windows=[workload], limits=[limits])
    else:
        places = [(start, start + WINDOW_ENTRIES) for start in window_starts(len(workload))]
    windows = [workload.window(start, stop) for start, stop in places if start < stop]
    return Sample(whole=limits, windows=windows, limits=[bounds(each) for each in windows])


def window_starts(entries: int) -> list[int]:
    """Returns the first entry of each window of a stream, at equal distances from its begin to its
    end.

    >>> window_starts(100_000)
    [0, 19180, 38361, 57542, 76723, 95904]
    """
    last = entries - WINDOW_ENTRIES
    return [last * number // (WINDOWS - 1) for number in range(WINDOWS)]


def run_line(windows: Sequence[Workload], line: Line, workers: int) -> Run:
    """Returns the run of a line with so many workers."""
    return simulate(windows, line.stamps, line.make, workers)
