"""An applier's status as a message: its coordinator, its workers, and what they wait for."""

from groupcert.v1 import applier_pb2

from ...applier.engine.applier import ApplierState, ApplierStatus
from ...applier.engine.worker import WorkerState
from ...applier.queue.target_progress import LastError
from ...applier.schemes import Cause

_WAITS_FOR = {
    WorkerState.IDLE: "a transaction",
    WorkerState.WAITING: "its turn to commit",
    WorkerState.RETRYING: "what failed to be possible",
    WorkerState.EXECUTING: "the target",
    WorkerState.COMMITTING: "the target",
}


def applier_status(
    status: ApplierStatus,
    *,
    channel: str,
    source: str,
    scheme: str,
    consistency: str,
    activity: str = "",
    lag_seconds: float = 0.0,
    behind_transactions: int = 0,
    last_recovery: str = "",
    operator_skipped: int = 0,
) -> applier_pb2.GetApplierStatusResponse:
    """Returns the message; `activity` says what the applier waits for where nothing is pending."""
    hold = status.hold
    waits_for = f"{hold.cause.value}: {hold.detail}".rstrip(": ") if hold else activity
    newest = status.low_water_mark
    error = status.failure or status.checkpoint.error
    coordinator = applier_pb2.Coordinator(
        channel=channel,
        source=source,
        scheme=scheme,
        consistency=consistency,
        state=status.state.value,
        waits_for=waits_for,
        pending_transactions=status.length,
        pending_bytes=status.pending_bytes,
        assigned_transactions=status.assigned,
        committed_transactions=status.committed_total,
        committed_groups=status.groups_total,
        skipped_transactions=status.skipped_total,
        parallelism_mean=status.parallelism_mean,
        gtid_executed=str(status.checkpoint.gtid_executed),
        low_water_mark_gtid=str(newest.gtid or "") if newest else "",
        low_water_mark_file=newest.header.file if newest else 0,
        low_water_mark_sequence_number=newest.sequence_number if newest else 0,
        has_gaps=status.has_gaps,
        lag_seconds=lag_seconds,
        behind_transactions=behind_transactions,
        is_sequential=status.is_sequential,
        holds=_counts(status.holds),
        fallbacks=_counts(status.fallbacks),
        domain_gtids={
            domain: str(gtid) for domain, gtid in sorted(status.checkpoint.domains.items())
        },
        error=error.cause if error and status.state is ApplierState.FAILED else "",
        last_recovery=last_recovery,
        last_error=_last_error(error) if error else None,
        operator_skipped_transactions=operator_skipped,
    )
    workers = [
        applier_pb2.ApplierWorker(
            worker=worker.number,
            state=worker.state.value,
            gtid=worker.gtid,
            waits_for=_WAITS_FOR.get(worker.state, ""),
            executed_transactions=worker.executed_total,
            retried_transactions=worker.retried_total,
            last_gtid=worker.last_gtid,
            last_seconds=worker.last_us / 1e6,
            queued_transactions=worker.queue_length,
        )
        for worker in status.workers
    ]
    return applier_pb2.GetApplierStatusResponse(coordinator=coordinator, workers=workers)


def _last_error(error: LastError) -> applier_pb2.LastError:
    return applier_pb2.LastError(
        stage=error.stage.value,
        worker=error.worker if error.worker >= 0 else None,
        gtid=error.gtid,
        statement=error.statement,
        cause=error.cause,
        at_seconds=error.at_us / 1e6,
    )


def _counts(causes: dict[Cause, int]) -> list[applier_pb2.CauseCount]:
    return [
        applier_pb2.CauseCount(cause=cause.value, count=count)
        for cause, count in sorted(causes.items(), key=lambda item: -item[1])
    ]
