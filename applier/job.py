"""What coordinator, workers and targets hand to each other: jobs, and groups of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from applier.relay_queue import RelayEntry

FIRST_TICK = 1
"""Where the coordinator's clock begins; 0 is before everything."""

Execution = TypeVar("Execution")
"""What a target makes of a transaction before it is committed; nobody else looks into it."""


@dataclass(slots=True, eq=False)
class Job(Generic[Execution]):
    """Consecutive transactions that start together and are committed together.

    `started` is the coordinator's tick when it was handed over. A job that is executed `at_commit`
    goes to no worker, who commits it executes it: local transactions, whose clients have done the
    work, and all of them where there are no workers. `executions` are there as soon as `is_ready`,
    but for such a job.
    """

    entries: Sequence[RelayEntry]
    started: int
    at_commit: bool = False
    is_ready: bool = False
    executions: Sequence[Execution] = field(default_factory=list)


class CommitGroup(NamedTuple, Generic[Execution]):
    """Jobs that become visible at once, in the total order; `tick` is the clock then."""

    tick: int
    jobs: list[Job[Execution]]
