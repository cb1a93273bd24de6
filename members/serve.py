"""One member as a process: its log server if it brings one, its runtime, its gRPC server, its end.

The rule it keeps: the server answers from the first moment, with the member's true state; and what
stops a member says what to do about it.
"""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Literal

import grpc.aio
import structlog
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from certifier.errors import DiskFull, GroupcertError, PortTaken
from groupcert.v1 import (
    applier_pb2,
    applier_pb2_grpc,
    binary_log_pb2,
    binary_log_pb2_grpc,
    certification_pb2,
    certification_pb2_grpc,
    group_pb2,
    group_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
)
from members.binary_log_service import BinaryLogService
from members.config import MemberConfig
from members.jetstream import JetStreamOptions, JetStreamOrder
from members.log_server import LogServer
from members.member import MemberState
from members.runtime import MemberRuntime
from members.service import (
    CertificationService,
    CurrentRuntime,
    GroupService,
    MemberApplierService,
    StoreService,
)

SWITCH_INTERVAL_SECONDS = 0.0005
"""A thread that waits for the interpreter lock gets it this soon; 5 ms, Python's own, would be the
latency of every hand-over between event loop and workers."""
GC_ALLOCATIONS = 50_000
"""Objects made until Python looks for cycles among the young ones: a message makes thousands, and
none of them is in a cycle."""
MESSAGE_BYTES_MAX = 64 << 20
GRACE_SECONDS = 2.0
LEAVE_SECONDS = 3.0
DISK_RETRY_SECONDS = 2.0
_SERVICES = tuple(
    descriptor.services_by_name[name].full_name
    for descriptor, name in (
        (certification_pb2.DESCRIPTOR, "CertificationService"),
        (store_pb2.DESCRIPTOR, "StoreService"),
        (group_pb2.DESCRIPTOR, "GroupService"),
        (binary_log_pb2.DESCRIPTOR, "BinaryLogService"),
        (applier_pb2.DESCRIPTOR, "ApplierService"),
    )
)
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def run_member(config: MemberConfig) -> int:
    """Runs a member until it is told to stop by SIGTERM or SIGINT; returns the exit code.

    Raises:
        GroupcertError: It cannot start; nothing was changed.
    """
    assert __debug__, "python -O removes the checks that a member relies on"
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    with ExitStack() as stack:
        servers, monitors = config.log_servers, config.log_monitors
        if not servers:
            server = stack.enter_context(_embedded_log_server(config))
            servers, monitors = (server.address,), (server.monitor,)
        options = JetStreamOptions(
            servers=servers,
            monitors=monitors,
            group=config.group,
            replicas=config.log_replicas,
            in_flight_max=config.publish_window,
            connect_ms_max=config.log_connect_ms,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config, options))


async def _serve(config: MemberConfig, options: JetStreamOptions) -> int:
    current = CurrentRuntime()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    checks = HealthServicer()
    server = await _start_server(config, current, checks)

    def on_state(state: MemberState) -> None:
        serving = health_pb2.HealthCheckResponse.SERVING
        if state is not MemberState.ONLINE:
            serving = health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *_SERVICES):
            task = asyncio.ensure_future(checks.set(name, serving))
            task.add_done_callback(lambda done: done.exception())

    try:
        stopped = asyncio.ensure_future(stop.wait())
        while not stopped.done():
            await _run_once(config, options, current, on_state, stopped)
    finally:
        await server.stop(GRACE_SECONDS)
    return 0


async def _run_once(
    config: MemberConfig,
    options: JetStreamOptions,
    current: CurrentRuntime,
    on_state: Callable[[MemberState], None],
    stopped: "asyncio.Future[Literal[True]]",
) -> None:
    """One life of the runtime: until the operator stops it, or a full disk makes it begin again."""
    order = JetStreamOrder(options)
    try:
        runtime = MemberRuntime(config, order, on_state)
    except DiskFull:
        if current.runtime is None:
            raise
        await asyncio.wait((stopped,), timeout=DISK_RETRY_SECONDS)
        return
    current.runtime = runtime
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS)
    running = asyncio.ensure_future(runtime.run())
    try:
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        await runtime.leave(LEAVE_SECONDS)
    except DiskFull as error:
        log.error("disk_full", member=config.member, text=str(error))
        runtime.stop_serving(MemberState.ERROR, str(error))
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError, GroupcertError):
            await running
        await order.close()
        runtime.close()
    if not stopped.done():
        await asyncio.wait((stopped,), timeout=DISK_RETRY_SECONDS)


async def _start_server(
    config: MemberConfig, current: CurrentRuntime, checks: HealthServicer
) -> grpc.aio.Server:
    server = grpc.aio.server(
        options=(
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        )
    )
    certification_pb2_grpc.add_CertificationServiceServicer_to_server(
        CertificationService(current), server
    )
    store_pb2_grpc.add_StoreServiceServicer_to_server(StoreService(current), server)
    group_pb2_grpc.add_GroupServiceServicer_to_server(GroupService(current), server)
    applier_pb2_grpc.add_ApplierServiceServicer_to_server(MemberApplierService(current), server)
    binary_log_pb2_grpc.add_BinaryLogServiceServicer_to_server(BinaryLogService(current), server)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    if config.reflection:
        names = (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    try:
        server.add_insecure_port(config.address)
    except RuntimeError:
        raise PortTaken(address=config.address) from None
    await server.start()
    return server


@contextmanager
def _embedded_log_server(config: MemberConfig) -> Iterator[LogServer]:
    server = LogServer(config.data_folder / "log-server", port=config.log_server_port)
    server.start()
    try:
        yield server
    finally:
        server.stop()
