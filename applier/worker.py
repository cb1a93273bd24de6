"""One worker: what it is doing, and how it executes a job."""

from dataclasses import dataclass
from enum import Enum
from typing import Generic

from applier.job import Execution, Job
from applier.targets import Target


class WorkerState(Enum):
    """What a worker is doing."""

    IDLE = "idle"
    EXECUTING = "executing"
    COMMITTING = "committing"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker as others see it; `executed_total` counts transactions."""

    number: int
    state: WorkerState
    executed_total: int


class Worker(Generic[Execution]):
    """A worker's counters; one thread at a time acts as it."""

    __slots__ = ("_target", "executed_total", "number", "state")

    def __init__(self, number: int, target: Target[Execution]) -> None:
        self.number = number
        self.state = WorkerState.IDLE
        self.executed_total = 0
        self._target = target

    def execute(self, job: Job[Execution]) -> list[Execution]:
        """Executes the job's transactions one after the other.

        Raises:
            Exception: what the target raised, with a note that names worker and transaction.
        """
        self.state = WorkerState.EXECUTING
        executions = execute(self._target, job)
        self.executed_total += len(executions)
        return executions

    def status(self) -> WorkerStatus:
        """The worker now."""
        return WorkerStatus(
            number=self.number, state=self.state, executed_total=self.executed_total
        )


def execute(target: Target[Execution], job: Job[Execution]) -> list[Execution]:
    """What the target makes of a job's transactions; whatever it raises says of which one."""
    executions: list[Execution] = []
    run = target.execute
    try:
        for entry in job.entries:
            executions.append(run(entry))  # noqa: PERF401 - its length says which one failed
    except Exception as error:
        entry = job.entries[len(executions)]
        error.add_note(f"executing {entry.gtid or 'a view change'} at position {entry.position}")
        raise
    return executions
