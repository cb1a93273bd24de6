"""The status of a member and of its group, as a message."""

import time
from typing import TYPE_CHECKING, Any

from applier.schemes import Consistency
from applier.status import ApplierStatus
from certifier.records import Verdict
from groupcert.v1 import applier_pb2, group_pb2
from members.applier_status import applier_status
from members.binary_log import BinaryLog
from members.log_health import LogHealth
from members.member_state import MemberState
from members.recovery_choice import RecoveryProgress
from members.runtime import MemberRuntime
from members.skipped_messages import SkippedMessages

if TYPE_CHECKING:
    from members.certification_log_writer import CertificationLogWriter


def group_status(runtime: MemberRuntime) -> group_pb2.GroupStatus:
    """What one member knows of the group and of itself."""
    member = runtime.member
    return group_pb2.GroupStatus(
        group=member.settings.group,
        view_id=member.view.view_id,
        members=[
            group_pb2.ViewMember(
                name=each.name,
                address=each.address,
                incarnation=each.incarnation,
                stable_version=member.report_of(each.incarnation)[1],
                suspected=member.is_suspected(each.incarnation),
                weight=each.weight,
                silent_ms=member.suspicions.overdue_ms(each.incarnation),
            )
            for each in member.view.members
        ],
        departed=[
            group_pb2.DepartedMember(
                name=each.name,
                address=each.address,
                cause=each.cause.value,  # type: ignore[arg-type]  # the numbers are the same
                view_id=each.view_id,
                since_us=each.since_us,
            )
            for each in member.departures.named()
        ],
        observer=_member_status(runtime, runtime.applier.status()),
        primary=member.view.primary,
    )


def group_applier_status(runtime: MemberRuntime) -> applier_pb2.GetApplierStatusResponse:
    """The applier of the member's own channel: it lacks what is certified and not visible."""
    certified = runtime.member.certifier.window.newest_version
    return applier_status(
        runtime.applier.status(),
        channel=f"group at {runtime.member.me.name}",
        source="the total order",
        scheme="logical-clock",
        consistency=Consistency.ANY_TIME.value,
        activity="waiting for the total order",
        behind_transactions=max(0, certified - runtime.committed_version),
    )


def _member_status(runtime: MemberRuntime, applier: ApplierStatus) -> group_pb2.MemberStatus:
    member = runtime.member
    certifier = member.certifier
    verdicts = member.counters.log_verdicts
    return group_pb2.MemberStatus(
        name=member.me.name,
        state=member.state.value,  # type: ignore[arg-type]  # the numbers are the same by design
        reason=_reason(runtime),
        log_sequence=member.log_sequence,
        certified_version=certifier.window.newest_version,
        committed_version=runtime.committed_version,
        durable_version=runtime.durable_version,
        stable_version=certifier.stable_version,
        gtid_executed=str(applier.checkpoint.gtid_executed),
        digest=member.digests.find(member.log_sequence).hex(),
        certification_info_items=len(certifier.info),
        last_committed_global=certifier.clock.last_committed_global,
        sequence_number=certifier.clock.sequence_number,
        transactions_certified=verdicts[Verdict.CERTIFIED],
        transactions_conflict=verdicts[Verdict.CONFLICT],
        transactions_too_old=verdicts[Verdict.TOO_OLD],
        transactions_refused=verdicts[Verdict.REFUSED],
        transactions_local=member.counters.local,
        transactions_applied=applier.committed_total,
        relay_queue_length=applier.length,
        relay_queue_bytes=runtime.relay_queue.bytes,
        workers=[
            group_pb2.WorkerStatus(
                worker=worker.number,
                state=worker.state.value,
                transactions_applied=worker.executed_total,
            )
            for worker in applier.workers
        ],
        parallelism_mean=applier.parallelism_mean,
        publishing_messages=runtime.order.publishing() if runtime.log_opened else 0,
        open_snapshots=len(runtime.snapshots),
        cpu_seconds=time.process_time(),
        log_unacknowledged_ms=runtime.order.unacknowledged_for_ms() if runtime.log_opened else 0,
        slowest_member=member.flow.slowest,
        slowest_lag=member.flow.lag,
        flow_control_held_ms=member.flow.held_ms,
        flow_control=member.flow.explanation(),
        uploads=runtime.uploads.count,
        uploads_bytes=runtime.uploads.bytes,
        fragment_sets=len(member.fragment_sets.names),
        fragment_sets_bytes=member.fragment_sets.bytes,
        log_durable=bool(runtime.log_durable),
        log_replicas=runtime.log_replicas,
        skipped_messages=member.skipped.total,
        skipped_last=_skipped(member.skipped),
        log_identity=str(runtime.log_identity or ""),
        vouches_for_log=runtime.vouches_for_log,
        stages=[
            group_pb2.StageTime(name=name, total_us=seconds * 1e6, count=count)
            for name, seconds, count in runtime.stages
        ],
        recovery=_recovery(runtime.recovery),
        log=_log(runtime.order.health()) if runtime.log_opened else None,
        run_verdicts=group_pb2.VerdictCounts(
            **{each.name.lower(): member.counters.verdicts[each] for each in Verdict}
        ),
        **_binary_log(runtime.binary_log),
        **_certification_log(runtime.history_writer),
    )


def _reason(runtime: MemberRuntime) -> str:
    """Why the member is not ONLINE; while it has no log to read, what it waits for."""
    member = runtime.member
    if runtime.log_opened or member.state is not MemberState.RECOVERING:
        return member.reason
    return runtime.order.health().problem or member.reason


def _log(health: LogHealth) -> group_pb2.LogStatus:
    """How the log's servers are."""
    return group_pb2.LogStatus(
        leader=health.leader,
        leaderless_ms=health.leaderless_ms,
        servers=[
            group_pb2.LogServerStatus(
                name=each.name,
                state=each.state.value,  # type: ignore[arg-type]  # the numbers are the same
                current=each.is_current,
                lag=each.lag,
            )
            for each in health.servers
        ],
        acknowledged_ms=health.acknowledged_ms,
        problem=health.problem,
    )


def _skipped(skipped: SkippedMessages) -> group_pb2.SkippedMessage | None:
    """The last message that was skipped; nothing where none was."""
    return group_pb2.SkippedMessage(**skipped.last._asdict()) if skipped.total else None


def _recovery(progress: RecoveryProgress | None) -> group_pb2.RecoveryProgress | None:
    """How far the copy of a donor's state is; nothing where there is none."""
    if progress is None:
        return None
    return group_pb2.RecoveryProgress(
        donor=progress.donor,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        bytes_per_second=progress.bytes_per_second,
    )


def _binary_log(log: BinaryLog | None) -> dict[str, Any]:
    """The binary log's part of a status; nothing where there is none."""
    if log is None:
        return {}
    files = log.files
    return {
        "binary_log_files": len(files),
        "binary_log_bytes": sum(file.bytes for file in files),
        "binary_log_first_gtid": next((file.first_gtid for file in files if file.first_gtid), ""),
        "binlog_commits": log.counters.commits,
        "binlog_group_commits": log.counters.group_commits,
    }


def _certification_log(writer: "CertificationLogWriter | None") -> dict[str, Any]:
    """The certification log's part of a status; nothing where there is none."""
    if writer is None:
        return {}
    return {
        "certification_log_waiting_rows": writer.outbox.waiting_rows,
        "certification_log_waiting_bytes": writer.outbox.waiting_bytes,
        "certification_log_waiting_bytes_max": writer.outbox.bytes_max,
        "certification_log_written_rows": writer.written_rows,
        "certification_log_last_file": writer.last_file,
        "certification_log_error": writer.error,
    }
