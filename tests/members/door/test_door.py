"""The door of a real server: every kind of call is asked, and plain tokens are for loopback."""

import asyncio
import hashlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from groupcert.members.door.answer_budget import AnswerBudget
from groupcert.members.door.call_limit import Rooms
from groupcert.members.door.call_times import CallTimes
from groupcert.members.door.callers import Callers
from groupcert.members.door.door import Door
from groupcert.members.errors.permissions import NotAuthenticated
from groupcert.members.host.loopback import free_port
from groupcert.members.security.access import AccessList
from groupcert.members.services.health import HealthChecks
from groupcert.members.wire.statuses import error_from
from tests.waiting import until

TOKEN = "a-token"
BEARER = (("authorization", f"Bearer {TOKEN}"),)
ACCESS = AccessList.model_validate(
    {
        "principal": [
            {
                "name": "probe",
                "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
                "roles": ["observe"],
            }
        ]
    }
)
Metadata = tuple[tuple[str, str], ...]


@contextmanager
def guarded(*addresses: str) -> Iterator[CallTimes]:
    """Runs a server without TLS behind the door; it serves health checks and reflection. Yields
    what it counts.
    """
    times = CallTimes()
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()

    async def serve() -> None:
        server = grpc.aio.server(
            interceptors=(
                Door(Callers(ACCESS, has_tls=False), Rooms(), times, AnswerBudget(1 << 20)),
            )
        )
        health_pb2_grpc.add_HealthServicer_to_server(HealthChecks(), server)
        reflection.enable_server_reflection((reflection.SERVICE_NAME,), server)
        for address in addresses:
            server.add_insecure_port(address)
        await server.start()
        await stopped.wait()
        await server.stop(None)

    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(loop.run_until_complete, serve())
        try:
            yield times
        finally:
            loop.call_soon_threadsafe(stopped.set)
            serving.result(10)
    loop.close()


def check(address: str, metadata: Metadata = BEARER) -> None:
    """Asks for the server's health, once it is up; raises what clients are told."""
    with grpc.insecure_channel(address) as channel:
        call = health_pb2_grpc.HealthStub(channel).Check
        try:
            call(health_pb2.HealthCheckRequest(), 30, metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            raise error_from(error, address) from None


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A guarded server on loopback."""
    address = f"127.0.0.1:{free_port()}"
    with guarded(address):
        check(address)
        yield address


def test_a_token_on_loopback_is_good(address: str, tmp_path: Path) -> None:
    check(address)
    path = f"unix:{tmp_path / 'socket'}"
    port = free_port()
    with guarded(path, f"[::]:{port}"):
        check(path)
        check(f"127.0.0.1:{port}")
        with suppress(OSError), closing(socket.socket(socket.AF_INET6)) as probe:
            probe.bind(("::1", 0))
            check(f"[::1]:{port}")


def test_a_token_in_clear_from_elsewhere_is_refused() -> None:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Sends nothing: it chooses this machine's address.
        except OSError:
            pytest.skip("this machine has no address but loopback")
        host = probe.getsockname()[0]
    port = free_port()
    with guarded(f"0.0.0.0:{port}"):
        check(f"127.0.0.1:{port}")
        with pytest.raises(NotAuthenticated, match="a token came without TLS") as caught:
            check(f"{host}:{port}")
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer other"),)])
def test_calls_of_every_kind_are_refused(address: str, metadata: Metadata) -> None:
    with pytest.raises(NotAuthenticated, match=r"/grpc\.health\.v1\.Health/Check"):
        check(address, metadata)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(address) as channel:
        info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        watch = health_pb2_grpc.HealthStub(channel).Watch
        for call in (
            info(iter([request]), timeout=10, metadata=metadata),
            watch(health_pb2.HealthCheckRequest(), timeout=10, metadata=metadata),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                next(iter(call))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_calls_of_every_kind_go_on(address: str) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(address) as channel:
        info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        (answer,) = info(iter([request]), timeout=10, metadata=BEARER)
        assert answer.list_services_response.service[0].name == reflection.SERVICE_NAME
        watching = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="x"), timeout=10, metadata=BEARER
        )
        first = next(iter(watching))
        assert first.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watching.cancel()


def test_a_call_that_nobody_serves_stays_unknown(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/nobody/Serves", bytes, bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_each_call_is_counted_by_its_code_and_a_refusal_by_its_reason() -> None:
    address = f"127.0.0.1:{free_port()}"
    call = "/grpc.health.v1.Health/Check"
    with guarded(address) as times, grpc.insecure_channel(address) as channel:
        check(address)
        for _ in range(2):
            with pytest.raises(NotAuthenticated):
                check(address, ())
        unknown = health_pb2.HealthCheckRequest(service="unknown")
        with pytest.raises(grpc.RpcError):
            health_pb2_grpc.HealthStub(channel).Check(unknown, 30, BEARER)
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/grpc.health.v1.Health/Other", None, None)(b"", 30, BEARER)
        watched = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), 30, BEARER
        )
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        assert (call.replace("Check", "Watch"), "OK") not in times.seconds
        watched.cancel()
        asyncio.run(until(lambda: len(times.seconds) == 4))
    assert {each: seconds.count for each, seconds in times.seconds.items()} == {
        (call, "OK"): 1,
        (call, "UNAUTHENTICATED"): 2,
        (call, "NOT_FOUND"): 1,
        (call.replace("Check", "Watch"), "CANCELLED"): 1,
    }
    assert times.refusals == {"NOT_AUTHENTICATED": 2}
