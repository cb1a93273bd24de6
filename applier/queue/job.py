"""Jobs and groups of jobs, which coordinator, workers and targets pass to each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from .relay_group import RelayEntry
from .row_parts import Part

FIRST_TICK = 1
"""The first tick of the coordinator's clock; 0 is before everything."""

Execution = TypeVar("Execution")
"""The target's result of executing a job, until it is committed; only the target reads it."""


@dataclass(slots=True, eq=False)
class Job(Generic[Execution]):
    """The transactions that one worker executes as one transaction of the target.

    `entries`: consecutive transactions of the source, mostly one, which become visible together.
    `worker`: who executes it. `part`: the job takes only these rows of its one entry; `parts`: into
    how many jobs that entry was divided. `keeps_newest`: a row change that is older than what the
    target has is discarded (WL#4648 C0). `started`: the coordinator's tick when it was handed over;
    `started_us`: when a worker began to execute it, in microseconds since 1970; `executed_us`: when
    the last try of that ended, from when on the job waits for its turn to commit. 0: not known.

    A job that is executed `at_commit` goes to no worker, who commits it executes it: local
    transactions, whose clients have done the work, and all of them where there are no workers.
    `execution` is there as soon as `is_ready`, but for such a job.
    """

    entries: Sequence[RelayEntry]
    worker: int = 0
    part: Part | None = None
    parts: int = 1
    keeps_newest: bool = False
    started: int = 0
    started_us: int = 0
    executed_us: int = 0
    at_commit: bool = False
    is_ready: bool = False
    execution: Execution | None = None


def _nobody(count: int) -> None:
    """Ignores that jobs are visible before the rest of their group."""


def _no_way() -> None:
    """Leaves younger jobs where they are."""


class CommitGroup(NamedTuple, Generic[Execution]):
    """Jobs that are committed one after the other, as one group; `tick` is the clock then.

    If the first ones are visible some time before the last is durable, the target may call
    `visible(count)`, for `count` more of them, which frees their workers. A commit that meets a
    lock may call `make_way()` before it is tried again: jobs that are executed and wait behind the
    group are undone, and executed again once it is visible.
    """

    tick: int
    jobs: list[Job[Execution]]
    visible: Callable[[int], None] = _nobody
    make_way: Callable[[], None] = _no_way
