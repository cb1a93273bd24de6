"""Health checks over a real connection: a watcher that reads nothing leaves the others alone."""

import asyncio

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.services.health import HealthChecks
from tests.raw_calls import RawCalls

WATCH = "/grpc.health.v1.Health/Watch"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_watcher_that_reads_nothing_keeps_no_status_from_others() -> None:
    checks, address = HealthChecks(), f"{HOST}:{free_port()}"
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    server.add_insecure_port(address)
    await server.start()
    unread = await asyncio.to_thread(RawCalls, address, 0)
    try:
        await asyncio.to_thread(unread.ask, WATCH, b"")
        async with grpc.aio.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watching = aiter(stub.Watch(health_pb2.HealthCheckRequest(), timeout=60))
            assert (await anext(watching)).status == SERVING
            await asyncio.wait_for(checks.set("", NOT_SERVING), 60)
            assert (await anext(watching)).status == NOT_SERVING
            await asyncio.wait_for(checks.enter_graceful_shutdown(), 60)
            check = await stub.Check(health_pb2.HealthCheckRequest())
            assert check.status == NOT_SERVING
            unknown = stub.Watch(health_pb2.HealthCheckRequest(service="other"), timeout=60)
            first = await anext(aiter(unknown))
            assert first.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    finally:
        await asyncio.to_thread(unread.__exit__)
        await server.stop(None)
    async with asyncio.timeout(60):  # Calls that were ended run until they see it.
        while checks._server_watchers:  # noqa: ASYNC110 - the end of a call has no event
            await asyncio.sleep(0.01)
