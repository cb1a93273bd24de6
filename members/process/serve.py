"""Runs one member as a process: its embedded log server, its runtime, its gRPC server.

The rule it keeps: the gRPC server answers from the first moment, with the member's true state; and
an error that stops a member says what to do about it.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from typing import TypeVar

import structlog
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from groupcert.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    applier_pb2,
    applier_pb2_grpc,
    binary_log_pb2,
    binary_log_pb2_grpc,
    certification_pb2,
    certification_pb2_grpc,
    group_pb2,
    group_pb2_grpc,
    recovery_pb2,
    recovery_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
)

from ..console.console import Console
from ..core.publisher import WINDOW
from ..core.views import MemberState
from ..door.answer_budget import AnswerBudget
from ..door.call_limit import Rooms
from ..door.call_times import CallTimes
from ..door.callers import Callers
from ..door.door import Door
from ..door.door_server import door_server
from ..door.frame_door import FrameDoor
from ..host.private_files import keep_private
from ..recovery.copies import Copies
from ..runtime.observation import Observation
from ..runtime.runtime import MemberRuntime
from ..services.admin import AdminService
from ..services.applier_service import ApplierService
from ..services.binary_log import BinaryLogService
from ..services.certification import CertificationService
from ..services.current_runtime import CurrentRuntime
from ..services.detail_metrics import PROCESS_COLLECTORS, DetailCollector, details
from ..services.donor_service import RecoveryService
from ..services.group import GroupService
from ..services.group_status import group_applier_status, group_status
from ..services.health import HealthChecks
from ..services.metrics import StatusCollector, metrics_application
from ..services.reflection import serve_reflection
from ..services.session_service import SessionService
from ..services.store import StoreService
from ..settings.member import MemberConfig
from ..total_order.embedded_server import LogServer, kept
from ..total_order.log_options import LogOptions, make_order, options_of
from ..wire.channels import add_port
from .lifecycle import Lifecycle, OpenServer
from .log_trimmer import keep_log

SWITCH_INTERVAL_SECONDS = 0.0005
"""Seconds until a thread that waits for the interpreter lock gets it; 5 ms, Python's default, would
be the latency of every hand-over between event loop and workers."""
GRACE_SECONDS = 2.0
SCRAPE_SECONDS_MAX = 5.0
_SERVICES = tuple(
    descriptor.services_by_name[name].full_name
    for descriptor, name in (
        (certification_pb2.DESCRIPTOR, "CertificationService"),
        (store_pb2.DESCRIPTOR, "StoreService"),
        (session_pb2.DESCRIPTOR, "SessionService"),
        (group_pb2.DESCRIPTOR, "GroupService"),
        (binary_log_pb2.DESCRIPTOR, "BinaryLogService"),
        (applier_pb2.DESCRIPTOR, "ApplierService"),
        (admin_pb2.DESCRIPTOR, "AdminService"),
        (recovery_pb2.DESCRIPTOR, "RecoveryService"),
    )
)
Observed = TypeVar("Observed")
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def run_member(config: MemberConfig, open_server: OpenServer | None = None) -> int:
    """Runs a member until SIGTERM or SIGINT; returns the exit code. `open_server` opens the server
    that keeps its rows; None: its store does.

    Raises:
        GroupcertError: It cannot start; nothing was changed.
    """
    assert __debug__, "python -O removes the checks that a member relies on"
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    keep_private(
        [config.data_folder, config.certification_log],
        lambda text: log.warning("folder_exposed", member=config.member, text=text),
    )
    config.credentials()  # Raises at once what would fail later.
    if config.log_tls is not None:
        config.log_tls.check("log_tls")
    if config.writes_certification_log:
        # Parquet takes half a second to load, for which an event loop would stand still.
        import_module("groupcert.members.certification_log.writer")
    with ExitStack() as stack:
        servers, monitors = config.log_servers, config.log_monitors
        if not servers:
            server = stack.enter_context(_embedded_log_server(config))
            servers, monitors = (server.address,), (server.monitor,)
        options = log_options(config, servers, monitors)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config, options, open_server))


def log_options(
    config: MemberConfig, servers: tuple[str, ...], monitors: tuple[str, ...]
) -> LogOptions:
    """Returns the options with which a member reaches its group's log."""
    return options_of(
        servers,
        monitors=monitors,
        tls=config.log_tls,
        group=config.group,
        replicas=config.log_replicas,
        in_flight_max=WINDOW,
        connect_ms_max=config.log_connect_ms,
    )


async def _serve(config: MemberConfig, options: LogOptions, open_server: OpenServer | None) -> int:
    current = CurrentRuntime()
    checks = HealthChecks()

    def stop() -> None:
        current.stopping.begin()
        turning_away = asyncio.ensure_future(checks.enter_graceful_shutdown())
        turning_away.add_done_callback(lambda done: done.exception())

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    copies = Copies(config.data_folder / "copies")
    calls = CallTimes()
    answers = AnswerBudget()

    def on_state(state: MemberState) -> None:
        serving = health_pb2.HealthCheckResponse.SERVING
        if state is not MemberState.ONLINE:
            serving = health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *_SERVICES):
            task = asyncio.ensure_future(checks.set(name, serving))
            task.add_done_callback(lambda done: done.exception())

    def on_runtime(runtime: MemberRuntime) -> None:
        current.runtime = runtime

    async with (
        serving(config, current, copies, checks, calls, answers),
        _console(config, current, calls, answers),
    ):
        lifecycle = Lifecycle(
            config,
            lambda: make_order(options),
            on_runtime,
            on_state,
            lambda runtime: keep_log(runtime, options, copies.log_sequences),
            open_server,
        )
        try:
            return await lifecycle.run(asyncio.ensure_future(current.stopping.begun()))
        finally:
            current.stopping.end()


@asynccontextmanager
async def serving(
    config: MemberConfig,
    current: CurrentRuntime,
    copies: Copies,
    checks: HealthChecks,
    calls: CallTimes,
    answers: AnswerBudget,
) -> AsyncIterator[None]:
    """Answers calls, and the frames of session streams, while the block runs. Raises PortTaken;
    InvalidSetting if a TLS file cannot serve.
    """
    callers = Callers(config.access, has_tls=config.tls is not None)
    door = Door(callers, Rooms(), calls, answers)
    server = door_server(door)
    frames = FrameDoor() if config.session_frames else None
    certification, store = CertificationService(current), StoreService(current)
    certification_pb2_grpc.add_CertificationServiceServicer_to_server(certification, server)
    store_pb2_grpc.add_StoreServiceServicer_to_server(store, server)
    session_pb2_grpc.add_SessionServiceServicer_to_server(
        SessionService(current, door, certification, store, frames), server
    )
    group_pb2_grpc.add_GroupServiceServicer_to_server(GroupService(current), server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(current, callers), server)
    applier_pb2_grpc.add_ApplierServiceServicer_to_server(
        ApplierService(lambda: group_applier_status(current.observed())), server
    )
    binary_log_pb2_grpc.add_BinaryLogServiceServicer_to_server(BinaryLogService(current), server)
    recovery_pb2_grpc.add_RecoveryServiceServicer_to_server(
        RecoveryService(current, copies, config), server
    )
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    serve_reflection((*_SERVICES, health.SERVICE_NAME), server)
    listens_at = config.listen_address or config.address
    add_port(server, listens_at, config.tls)
    if frames is not None:
        host = listens_at.rpartition(":")[0]
        await frames.listen(host, config.session_frames_port, config.tls)
    await server.start()
    try:
        yield
    finally:
        await server.stop(GRACE_SECONDS)
        if frames is not None:
            frames.close()


@asynccontextmanager
async def _console(
    config: MemberConfig, current: CurrentRuntime, calls: CallTimes, answers: AnswerBudget
) -> AsyncIterator[None]:
    """Serves the member's console and its metrics while the block runs, if an address is set."""
    if config.metrics_address is None:
        yield
        return
    console = Console(config, current, answers)

    def observed(look: Callable[[Observation], Observed]) -> Observed | None:
        """Returns the result of `look` on the event loop: no other thread may look at a runtime."""
        return console.on_loop(
            lambda: None if current.runtime is None else look(current.observed()),
            SCRAPE_SECONDS_MAX,
        )

    metrics = metrics_application(
        StatusCollector(lambda: observed(group_status)),
        StatusCollector(lambda: observed(group_applier_status)),
        DetailCollector(
            config.group,
            config.member,
            lambda: observed(lambda seen: details(seen, calls, answers)),
        ),
        *PROCESS_COLLECTORS,
    )
    async with console.serving(config.metrics_address, metrics):
        yield


@contextmanager
def _embedded_log_server(config: MemberConfig) -> Iterator[LogServer]:
    server = LogServer(config.data_folder / "log-server")
    with kept(
        server, lambda why: log.warning("log_server_restart", member=config.member, text=why)
    ):
        yield server
