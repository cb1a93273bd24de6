"""The status of a member and of its group, as a message."""

import time

from applier.applier import ApplierStatus
from certifier.records import Verdict
from groupcert.v1 import group_pb2
from members.runtime import MemberRuntime


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
            )
            for each in member.view.members
        ],
        observer=_member_status(runtime, runtime.applier.status()),
    )


def _member_status(runtime: MemberRuntime, applier: ApplierStatus) -> group_pb2.MemberStatus:
    member = runtime.member
    certifier = member.certifier
    verdicts = member.counters.verdicts
    return group_pb2.MemberStatus(
        name=member.me.name,
        state=member.state.value,  # type: ignore[arg-type]  # the numbers are the same by design
        reason=member.reason,
        log_sequence=member.log_sequence,
        certified_version=certifier.window.newest_version,
        committed_version=runtime.committed_version,
        durable_version=runtime.durable_version,
        stable_version=certifier.stable_version,
        gtid_executed=str(applier.checkpoint.gtid_executed),
        digest=certifier.digest().hex(),
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
        relay_queue_bytes=applier.relay_bytes,
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
        log_durable=bool(runtime.log_durable),
        log_replicas=runtime.log_replicas,
        stages=[
            group_pb2.StageTime(name=name, total_us=seconds * 1e6, count=count)
            for name, seconds, count in runtime.stages
        ],
    )
