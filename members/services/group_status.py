"""Builds the message with the status of a member and of its group."""

import time
from dataclasses import asdict
from typing import Any

from groupcert.v1 import applier_pb2, group_pb2

from ...applier.engine.applier import ApplierStatus
from ...applier.schemes import Consistency
from ...certifier.records import Verdict
from ..binary_log.stored_log import BinaryLog
from ..certification_log.outbox import KeptHistory
from ..core.comparisons import Comparisons
from ..core.views import MemberState
from ..host.histogram import Histogram
from ..runtime.observation import Observation
from ..wire.applier_status import applier_status


def group_status(observed: Observation) -> group_pb2.GroupStatus:
    """Returns the status of the group, and of the member, as that member sees them."""
    member = observed.member
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
                format_version=each.format_version,
                release=each.release,
                without_rows=each.without_rows,
            )
            for each in member.view.members
        ],
        departed=[
            group_pb2.DepartedMember(**each._asdict() | {"cause": each.cause.value})
            for each in member.departures.named()
        ],
        observer=_member_status(observed),
        primary=member.view.primary,
        format_version=member.view.written_format,
        comparison=_comparison(member.comparisons) if member.comparisons.position else None,
    )


def group_applier_status(observed: Observation) -> applier_pb2.GetApplierStatusResponse:
    """Returns the status of the member's own applier: it lacks what is certified, not visible."""
    certified = observed.member.certifier.window.newest_version
    return applier_status(
        observed.applier,
        channel=f"group at {observed.member.me.name}",
        source="the total order",
        scheme="logical-clock",
        consistency=Consistency.ANY_TIME.value,
        activity="waiting for the total order",
        behind_transactions=max(0, certified - observed.committed_version),
    )


def _member_status(observed: Observation) -> group_pb2.MemberStatus:
    member, applier = observed.member, observed.applier
    certifier = member.certifier
    verdicts, recovery = member.counters.log_verdicts, observed.recovery
    skipped = member.skipped.last if member.skipped.total else None
    return group_pb2.MemberStatus(
        name=member.me.name,
        release=member.me.release,
        format_version=member.me.format_version,
        state=member.state.value,  # type: ignore[arg-type]  # the numbers are the same by design
        reason=_reason(observed),
        log_sequence=member.log_sequence,
        certified_version=certifier.window.newest_version,
        committed_version=observed.committed_version,
        durable_version=observed.durable_version,
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
        relay_queue_bytes=observed.relay_queue_bytes,
        workers=_workers(applier),
        parallelism_mean=applier.parallelism_mean,
        publishing_messages=observed.publishing_messages,
        open_snapshots=observed.open_snapshots,
        cpu_seconds=time.process_time(),
        log_unacknowledged_ms=observed.unacknowledged_ms,
        slowest_member=member.flow.slowest,
        slowest_lag=member.flow.lag,
        flow_control_held_ms=member.flow.held_ms,
        flow_control=member.flow.explanation(),
        uploads=observed.uploads,
        uploads_bytes=observed.uploads_bytes,
        fragment_sets=len(member.fragment_sets.names),
        fragment_sets_bytes=member.fragment_sets.bytes,
        log_durable=bool(observed.log_durable),
        log_replicas=observed.log_replicas,
        skipped_messages=member.skipped.total,
        skipped_last=group_pb2.SkippedMessage(**skipped._asdict()) if skipped else None,
        log_identity=str(observed.log_identity or ""),
        vouches_for_log=observed.vouches_for_log,
        stages=[
            group_pb2.StageTime(name=name, total_us=spent.sum * 1e6, count=spent.count)
            for name, spent in observed.stages.stages.items()
        ],
        commit_durations=_durations(observed.stages.verdicts[Verdict.CERTIFIED]),
        oldest_snapshot_version=observed.oldest_snapshot_version,
        console_address=observed.console_address,
        relay_first_version=observed.relay_first_version,
        server=observed.server,
        recovery=group_pb2.RecoveryProgress(**asdict(recovery)) if recovery else None,
        log=_log(observed) if observed.log_opened else None,
        run_verdicts=group_pb2.VerdictCounts(
            **{each.name.lower(): member.counters.verdicts[each] for each in Verdict}
        ),
        **_binary_log(observed.binary_log),
        **_certification_log(observed.history_writer),
    )


def _comparison(compared: Comparisons) -> group_pb2.RowComparison:
    """Returns the result of the last comparison of rows."""
    differing = {each.member: each.ranges for each in compared.differences()}
    return group_pb2.RowComparison(
        position=compared.position,
        version=compared.version,
        requested_us=compared.requested_us,
        members=[
            group_pb2.ComparedMember(
                name=name,
                answered=answer is not None,
                rows=answer.rows if answer else 0,
                differing_ranges=differing.get(name, ()),
                tables=answer.tables if answer else 0,
            )
            for run, name in compared.asked.items()
            for answer in (compared.answers.get(run),)
        ],
    )


def _workers(applier: ApplierStatus) -> list[group_pb2.WorkerStatus]:
    return [
        group_pb2.WorkerStatus(
            worker=worker.number,
            state=worker.state.value,
            transactions_applied=worker.executed_total,
        )
        for worker in applier.workers
    ]


def _durations(histogram: Histogram) -> group_pb2.DurationCounts:
    return group_pb2.DurationCounts(bounds=histogram.bounds, counts=histogram.counts)


def _reason(observed: Observation) -> str:
    """Returns the reason why the member is not ONLINE; without a log, what it waits for."""
    member = observed.member
    if observed.log_opened or member.state is not MemberState.RECOVERING:
        return member.reason
    return observed.log_health.problem or member.reason


def _log(observed: Observation) -> group_pb2.LogStatus:
    """Returns the health of the log's servers, and the space that they have for it."""
    health = observed.log_health
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
        full=health.full,
        bytes=observed.log_bytes,
        bytes_max=observed.log_bytes_max,
    )


def _binary_log(log: BinaryLog | None) -> dict[str, Any]:
    """Returns the binary log's fields of a status; empty if there is none."""
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


def _certification_log(writer: KeptHistory | None) -> dict[str, Any]:
    """Returns the certification log's fields of a status; empty if there is none."""
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
