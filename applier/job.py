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

    `started` is the coordinator's tick when it was handed over. A job of nothing but local
    transactions `is_local`: no worker gets it, who commits it reads its rows. `executions` are
    there as soon as `is_ready`, but for a local job."""

    entries: Sequence[RelayEntry]
    started: int
    is_local: bool = False
    is_ready: bool = False
    executions: Sequence[Execution] = field(default_factory=list)


class CommitGroup(NamedTuple, Generic[Execution]):
    """Jobs that become visible at once, in the total order; `tick` is the clock then."""

    tick: int
    jobs: list[Job[Execution]]
