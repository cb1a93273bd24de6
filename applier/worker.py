"""One worker: what it is doing, how it executes a job, and when it tries again.

The rule it keeps: only a transient failure is tried again, and a job that is not the next to commit
waits for its turn before that: what stands in its way is then either committed, or younger and
asked to give way.

Source: `slave_transaction_retries`; MDEV-4506's successors for the order of retries.
"""

from dataclasses import dataclass
from enum import Enum

from certifier.errors import InvalidSetting

WORKERS_MAX = 1024


class WorkerState(Enum):
    """What a worker is doing."""

    IDLE = "idle"
    EXECUTING = "executing"
    RETRYING = "retrying"
    WAITING = "waiting for its turn"
    COMMITTING = "committing"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker as others see it; totals count transactions, `gtid` is the current or last one."""

    number: int
    state: WorkerState
    executed_total: int
    retried_total: int
    gtid: str


class Worker:
    """A worker's counters; one thread at a time acts as it."""

    __slots__ = ("executed_total", "gtid", "number", "retried_total", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = WorkerState.IDLE
        self.executed_total = 0
        self.retried_total = 0
        self.gtid: object = None

    def status(self) -> WorkerStatus:
        """The worker now."""
        return WorkerStatus(
            number=self.number,
            state=self.state,
            executed_total=self.executed_total,
            retried_total=self.retried_total,
            gtid=str(self.gtid or ""),
        )


def check_workers(workers: int) -> None:
    """Raises InvalidSetting for a number of workers that there cannot be."""
    if not 0 <= workers <= WORKERS_MAX:
        raise InvalidSetting(name="workers", value=workers, expected=f"0 to {WORKERS_MAX}")
