"""A comparison: every scheme over the same workload, with each number of workers.

A line of the comparison is a scheme, its settings and the stamps it reads. Every run is a pure
function of the workload, the line and the number of workers, so it does not matter where it is
computed. The bound of a run is computed from the jobs that it ran: no run beats its bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...certifier.errors import InvalidSetting
from ..schemes import Scheme
from ..schemes.catalogue import SCHEMES, scheme
from .dependencies import CriticalPath, critical_path
from .simulation import Run, simulate
from .workload import Stamps, Workload

WORKERS_MAX = 1_024


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
    """The bounds that no schedule of a workload beats, in microseconds.

    `serial_us`: one worker that commits each transaction alone. `path`: the critical path, with
    the commits on it; `execution_path_us` without. `longest_us`: the longest single execution;
    `longest_row_us`: all changes of one row, which no division of transactions shortens.
    """

    serial_us: int
    execution_us: int
    path: CriticalPath
    execution_path_us: int
    longest_us: int
    longest_row_us: int

    def least_us(self, workers: int) -> int:
        """Returns the bound of the workload itself: max(work / workers, critical path)."""
        return max(-(-self.serial_us // workers), self.path.length_us)


def bounds(workload: Workload) -> Bounds:
    """Returns the bounds of a workload. Cost: O(edges), twice if commits take time."""
    durations_us, commit_us = workload.durations_us, workload.costs.commit_us
    execution = critical_path(workload.dependencies, durations_us)
    path = execution
    if commit_us:
        lengths_us = [duration_us + commit_us for duration_us in durations_us]
        path = critical_path(workload.dependencies, lengths_us)
    execution_us = sum(durations_us)
    return Bounds(
        serial_us=execution_us + commit_us * len(workload),
        execution_us=execution_us,
        path=path,
        execution_path_us=execution.length_us,
        longest_us=max(durations_us, default=0),
        longest_row_us=workload.longest_row_us(),
    )


def run_line(workload: Workload, line: Line, workers: int) -> Run:
    """Returns the run of a line with so many workers."""
    return simulate(workload, line.stamps, line.make(), workers)


def bound_of(run: Run, limits: Bounds, workload: Workload) -> int:
    """Returns the shortest time of this run, in microseconds: the larger of its workers' time and
    the longest chain of transactions that it kept in order.

    A scheme that divides transactions keeps only the chains of single rows; one with a
    transaction that overtook one that it follows kept none; one that merges them commits a
    chain once.
    """
    commit_us = workload.costs.commit_us
    work_us = limits.execution_us + run.jobs * commit_us
    if run.overtakers is None:
        chain_us = limits.longest_row_us
    elif run.overtakers:
        chain_us = limits.longest_us
    elif run.jobs < len(workload):
        chain_us = limits.execution_path_us
    else:
        chain_us = limits.path.length_us
    return max(-(-work_us // run.workers), chain_us)
