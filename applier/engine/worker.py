"""One worker: its state and its counters, and the limit of workers.

Only a transient failure is retried, and a job that is not the next to commit waits for its turn
before that: whatever blocks it is then either committed, or younger and retracted.

Source: `slave_transaction_retries`; MDEV-4506's successors for the order of retries.
"""

from collections.abc import Mapping
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
    """The status of a worker; totals count transactions, `gtid` is the current or last one.

    `last_gtid`: the last one that it executed, at `last_us`, in microseconds since 1970.
    `queue_length`: transactions that are assigned to it and not executed (WL#5569's jobs).
    """

    number: int
    state: WorkerState
    executed_total: int
    retried_total: int
    gtid: str
    last_gtid: str = ""
    last_us: int = 0
    queue_length: int = 0


class Worker:
    """Counts the work of a worker; only one thread at a time uses it."""

    __slots__ = (
        "executed_total",
        "gtid",
        "last_gtid",
        "last_us",
        "number",
        "queue_length",
        "retried_total",
        "state",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = WorkerState.IDLE
        self.executed_total = 0
        self.retried_total = 0
        self.gtid: object = None
        self.last_gtid: object = None
        self.last_us = 0
        self.queue_length = 0

    def status(self, waiting: Mapping[int, int]) -> WorkerStatus:
        """Returns the worker's present state and counters; `waiting`: transactions that the scheme
        keeps for each worker.
        """
        return WorkerStatus(
            number=self.number,
            state=self.state,
            executed_total=self.executed_total,
            retried_total=self.retried_total,
            gtid=str(self.gtid or ""),
            last_gtid=str(self.last_gtid or ""),
            last_us=self.last_us,
            queue_length=self.queue_length + waiting.get(self.number, 0),
        )


def check_workers(workers: int) -> None:
    """Raises InvalidSetting unless `workers` is 0 to `WORKERS_MAX`."""
    if not 0 <= workers <= WORKERS_MAX:
        raise InvalidSetting(name="workers", value=workers, expected=f"0 to {WORKERS_MAX}")
