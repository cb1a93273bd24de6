"""A snapshot of a run for its status, its metrics and its problems."""

from dataclasses import dataclass
from typing import Any

from ...applier.engine.applier import ApplierStatus
from ...certifier.storage.store import Store
from ..binary_log.stored_log import BinaryLog
from ..certification_log.outbox import KeptHistory
from ..core.member import Member
from ..core.recovery_progress import RecoveryProgress
from ..host.histogram import Histogram
from ..total_order.port import LogIdentity
from ..total_order.server_health import LogHealth
from .answers import StageTimes
from .runtime import MemberRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A member at one moment of its event loop; to be read only, and only there."""

    member: Member
    applier: ApplierStatus
    committed_version: int
    durable_version: int
    relay_queue_bytes: int
    relay_first_version: int
    publishing_messages: int
    unacknowledged_ms: int
    open_snapshots: int
    oldest_snapshot_version: int
    console_address: str
    uploads: int
    uploads_bytes: int
    stages: StageTimes
    batch_sizes: Histogram
    append_seconds: Histogram
    store: Store
    log_opened: bool
    log_health: LogHealth
    log_identity: LogIdentity | None
    log_durable: bool | None
    log_replicas: int
    log_bytes: int
    log_bytes_max: int
    vouches_for_log: bool
    recovery: RecoveryProgress | None
    """Progress of the copy of a donor's state; None: there is none."""
    server: Any
    """The status of the server that keeps the rows, a message; None: the store does."""
    binary_log: BinaryLog | None
    history_writer: KeptHistory | None


def observe(runtime: MemberRuntime) -> Observation:
    """Returns an observation of a run now; of a closed run, of its end."""
    order, log_opened = runtime.order, runtime.log_opened
    return Observation(
        member=runtime.member,
        applier=runtime.rows.status(),
        committed_version=runtime.committed_version,
        durable_version=runtime.durable_version,
        relay_queue_bytes=runtime.relay_queue.bytes,
        relay_first_version=runtime.rows.relay_first_version(),
        publishing_messages=order.publishing() if log_opened else 0,
        unacknowledged_ms=order.unacknowledged_for_ms() if log_opened else 0,
        open_snapshots=len(runtime.snapshots),
        oldest_snapshot_version=runtime.member.held.oldest,
        console_address=runtime.config.console_address,
        uploads=runtime.uploads.count,
        uploads_bytes=runtime.uploads.bytes,
        stages=runtime.answers.stages,
        batch_sizes=runtime.batch_sizes,
        append_seconds=order.append_seconds,
        store=runtime.store,
        log_opened=log_opened,
        log_health=order.health(),
        log_identity=runtime.log_identity,
        log_durable=runtime.log_durable,
        log_replicas=runtime.log_replicas,
        log_bytes=runtime.log_bytes,
        log_bytes_max=runtime.log_bytes_max,
        vouches_for_log=runtime.vouches_for_log,
        recovery=runtime.recovery,
        server=runtime.rows.server_status(),
        binary_log=runtime.binary_log,
        history_writer=runtime.history_writer,
    )
