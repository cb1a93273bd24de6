"""One worker: its state and its counters, and the limit of workers.

Only a transient failure is retried, and a job that is not the next to commit waits for its turn
before that: whatever blocks it is then either committed, or younger and retracted.

Source: `slave_transaction_retries`; MDEV-4506's successors for the order of retries.
"""

from dataclasses import dataclass
from enum import Enum

from ...certifier.errors import InvalidSetting

WORKERS_MAX = 1024


class WorkerState(Enum):
    """The state of a worker."""

    IDLE = "idle"
    EXECUTING = "executing"
    RETRYING = "retrying"
    WAITING = "waiting for its turn"
    COMMITTING = "committing"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """The status of a worker; totals count transactions, `gtid` is the current or last one."""

    number: int
    state: WorkerState
    executed_total: int
    retried_total: int
    gtid: str


class Worker:
    """Counts the work of a worker; only one thread at a time uses it."""

    __slots__ = ("executed_total", "gtid", "number", "retried_total", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = WorkerState.IDLE
        self.executed_total = 0
        self.retried_total = 0
        self.gtid: object = None

    def status(self) -> WorkerStatus:
        """Returns the worker's present state and counters."""
        return WorkerStatus(
            number=self.number,
            state=self.state,
            executed_total=self.executed_total,
            retried_total=self.retried_total,
            gtid=str(self.gtid or ""),
        )


def check_workers(workers: int) -> None:
    """Raises InvalidSetting unless `workers` is 0 to `WORKERS_MAX`."""
    if not 0 <= workers <= WORKERS_MAX:
        raise InvalidSetting(name="workers", value=workers, expected=f"0 to {WORKERS_MAX}")
