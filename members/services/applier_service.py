"""The gRPC service that answers with the status of one applier."""

from collections.abc import Callable

import grpc

from groupcert.v1 import applier_pb2, applier_pb2_grpc

from .serving import Context

ApplierMessage = applier_pb2.GetApplierStatusResponse
Observe = Callable[[], ApplierMessage | None]
"""Returns the status now, or None while there is no applier."""


class ApplierService(applier_pb2_grpc.ApplierServiceServicer):
    """Answers with the status of one applier."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe

    async def GetApplierStatus(
        self, request: applier_pb2.GetApplierStatusRequest, context: Context
    ) -> applier_pb2.GetApplierStatusResponse:
        """Returns the status now."""
        status = self._observe()
        if status is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the applier is starting: try again")
        return status
