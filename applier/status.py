"""An applier as others see it: what it has done, what it has in hand, and what it waits for."""

from dataclasses import dataclass
from enum import Enum

from applier.checkpoint import Checkpoint
from applier.relay_queue import RelayEntry
from applier.schemes import Cause, Hold
from applier.worker import WorkerStatus


class ApplierState(Enum):
    """RUNNING, until it is told to stop or a transaction cannot be executed."""

    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplierStatus:
    """The applier as others see it.

    `length`, `pending_bytes`: entries not visible yet, and their payloads. `committed_total` and
    `skipped_total`: entries that became visible, and that were executed before. `low_water_mark`:
    the newest entry of which this applier knows that nothing before it is missing.
    `hold`: what the head of the queue waits for. `holds`, `fallbacks`: heads that were held, and
    returns to sequential execution, by cause. `error`: why it failed, in `failed_worker` at
    `failed_gtid`."""

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
        """Whether something is executed and something older is not."""
        return self.checkpoint.missing > 0
