"""The gRPC service that answers with the status of one applier, and a server for it alone."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from grpc_status import rpc_status as grpc_rpc_status

from groupcert.v1 import applier_pb2, applier_pb2_grpc

from ...certifier.errors import GroupcertError
from ..door.callers import Callers
from ..door.refusal_log import RefusalLog
from ..security.access import AccessList
from ..security.credentials import Tls
from ..wire.channels import add_port
from ..wire.statuses import rpc_status

ApplierMessage = applier_pb2.GetApplierStatusResponse
Observe = Callable[[], ApplierMessage | None]
"""Returns the status now, or None while there is no applier."""

CALL = "/groupcert.v1.ApplierService/GetApplierStatus"
SERVER_THREADS = 4
REQUEST_BYTES_MAX = 4 << 10
CALLS_MAX = 1_024
"""Calls at a time: before callers are identified, what they send takes at most `CALLS_MAX` times
`REQUEST_BYTES_MAX`."""

CONNECTION_CALLS_MAX = 32
"""Calls at a time of one connection: gRPC does not count those whose answers nobody takes."""


class ApplierService(applier_pb2_grpc.ApplierServiceServicer):
    """Answers with the status of one applier."""

    def __init__(
        self, observe: Observe, access: AccessList | None = None, *, has_tls: bool = False
    ) -> None:
        """Answers with what `observe` returns; `access`: who may ask, None: whoever can connect."""
        self._observe = observe
        self._callers = Callers(access, has_tls=has_tls)
        self._log = RefusalLog()

    def GetApplierStatus(
        self,
        request: applier_pb2.GetApplierStatusRequest,
        context: grpc.ServicerContext,
    ) -> applier_pb2.GetApplierStatusResponse:
        """Returns the status now."""
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
    """Answers at `host:port` during the block, with TLS to callers whose certificate is valid and
    who may ask.

    Raises PortTaken if another process does; InvalidSetting if a TLS file cannot serve.
    """
    server = grpc.server(
        ThreadPoolExecutor(SERVER_THREADS),
        options=(
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
            ("grpc.max_concurrent_streams", CONNECTION_CALLS_MAX),
            ("grpc.http2.bdp_probe", 0),  # It lets senders send ahead what is not read.
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
