"""An applier's status as a message, and the service that answers with it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from grpc_status import rpc_status as grpc_rpc_status

from applier.schemes import Cause
from applier.status import ApplierStatus
from applier.worker import WorkerState
from certifier.errors import GroupcertError
from groupcert.v1 import applier_pb2, applier_pb2_grpc
from members.access import AccessList
from members.callers import Callers
from members.channels import add_port
from members.credentials import Tls
from members.refusal_log import RefusalLog
from members.status import rpc_status

ApplierMessage = applier_pb2.GetApplierStatusResponse
Observe = Callable[[], ApplierMessage | None]
"""Returns the status now, or None while there is no applier."""

CALL = "/groupcert.v1.ApplierService/GetApplierStatus"
SERVER_THREADS = 4
REQUEST_BYTES_MAX = 4 << 10
CALLS_MAX = 1_024
"""At a time: what is sent before anybody is asked who sends it takes no more than both together."""
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
) -> applier_pb2.GetApplierStatusResponse:
    """The message. `activity`: what is waited for where nothing is pending."""
    hold = status.hold
    waits_for = f"{hold.cause.value}: {hold.detail}".rstrip(": ") if hold else activity
    newest = status.low_water_mark
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
        error=status.error,
        last_recovery=last_recovery,
    )
    workers = [
        applier_pb2.ApplierWorker(
            worker=worker.number,
            state=worker.state.value,
            gtid=worker.gtid,
            waits_for=_WAITS_FOR.get(worker.state, ""),
            executed_transactions=worker.executed_total,
            retried_transactions=worker.retried_total,
        )
        for worker in status.workers
    ]
    return applier_pb2.GetApplierStatusResponse(coordinator=coordinator, workers=workers)


class ApplierService(applier_pb2_grpc.ApplierServiceServicer):
    """Answers with the status of one applier."""

    def __init__(
        self, observe: Observe, access: AccessList | None = None, *, has_tls: bool = False
    ) -> None:
        """`access`: who may ask; None: whoever can connect."""
        self._observe = observe
        self._callers = Callers(access, has_tls=has_tls)
        self._log = RefusalLog()

    def GetApplierStatus(
        self,
        request: applier_pb2.GetApplierStatusRequest,
        context: grpc.ServicerContext,
    ) -> applier_pb2.GetApplierStatusResponse:
        """The status now."""
        try:
            self._callers.admit(CALL, context)
        except GroupcertError as refusal:
            self._log.note(CALL, context.peer(), refusal)
            context.abort_with_status(grpc_rpc_status.to_status(rpc_status(refusal)))
        status = self._observe()
        if status is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the applier is starting: try again")
        return status


@contextmanager
def serving_status(
    address: str, observe: Observe, tls: Tls | None = None, access: AccessList | None = None
) -> Iterator[None]:
    """Answers at `host:port` during the block, with TLS to those whose certificate is good, and to
    those only who may ask.

    Raises PortTaken: somebody else does. InvalidSetting: a TLS file cannot serve.
    """
    server = grpc.server(
        ThreadPoolExecutor(SERVER_THREADS),
        options=(
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
            ("grpc.http2.bdp_probe", 0),  # It lets senders send ahead what nobody takes.
        ),
        maximum_concurrent_rpcs=CALLS_MAX,
    )
    applier_pb2_grpc.add_ApplierServiceServicer_to_server(
        ApplierService(observe, access, has_tls=tls is not None), server
    )
    add_port(server, address, tls)
    server.start()
    try:
        yield
    finally:
        server.stop(1.0).wait()


def _counts(causes: dict[Cause, int]) -> list[applier_pb2.CauseCount]:
    return [
        applier_pb2.CauseCount(cause=cause.value, count=count)
        for cause, count in sorted(causes.items(), key=lambda item: -item[1])
    ]
