"""The status of an applier: its counters, its queue, and what it waits for."""

from dataclasses import dataclass
from enum import Enum

from ..queue.checkpoint import Checkpoint
from ..queue.relay_group import RelayEntry
from ..schemes import Cause, Hold
from .worker import WorkerStatus


class ApplierState(Enum):
    """The state of an applier: RUNNING, until it is stopped or a transaction cannot be executed."""

    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplierStatus:
    """The status of an applier.

    `length`, `pending_bytes`: entries not visible yet, and their payloads. `committed_total` and
    `skipped_total`: entries that became visible, and that were executed before. `low_water_mark`:
    the newest entry of which this applier knows that nothing before it is missing.
    `hold`: what the head of the queue waits for. `holds`, `fallbacks`: heads that were held, and
    returns to sequential execution, by cause. `error`: why it failed, in `failed_worker` at
    `failed_gtid`.
    """

    state: ApplierState
    length: int
    assigned: int
    pending_bytes: int
    committed_total: int
    groups_total: int
    skipped_total: int
    parallelism_mean: float
    checkpoint: Checkpoint
    low_water_mark: RelayEntry | None
    hold: Hold | None
    is_sequential: bool
    holds: dict[Cause, int]
    fallbacks: dict[Cause, int]
    workers: tuple[WorkerStatus, ...]
    error: str
    failed_worker: int
    failed_gtid: str

    @property
    def has_gaps(self) -> bool:
        """True if something is executed and something older is not."""
        return self.checkpoint.missing > 0
