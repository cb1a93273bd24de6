"""gRPC's service of health checks, with the list of all services that its library leaves out.

The library sends the status while it holds the lock that a change of the status needs: one watcher
that reads nothing would leave all others with the old one. The rule kept here: nobody waits for a
watcher.
"""

from collections.abc import AsyncIterator

from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from .serving import Context

UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthChecks(HealthServicer):  # type: ignore[misc]  # has no types
    """The health of each service."""

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Yields the status of a service, and again when it has changed."""
        name, status = request.service, None
        changed, watchers = self._server_watchers[name], self._watcher_count_by_service
        watchers[name] += 1
        try:
            while True:
                async with changed:
                    while (now := self._server_status.get(name, UNKNOWN)) == status:
                        await changed.wait()
                status = now
                yield health_pb2.HealthCheckResponse(status=status)
        finally:
            watchers[name] -= 1
            if not watchers[name]:
                del watchers[name], self._server_watchers[name]

    async def List(
        self, request: health_pb2.HealthListRequest, context: Context
    ) -> health_pb2.HealthListResponse:
        """Returns the status of every service."""
        named = {
            name: health_pb2.HealthCheckResponse(status=status)
            for name, status in self._server_status.items()
        }
        return health_pb2.HealthListResponse(statuses=named)
