"""The gRPC server of a replica: the status of its applier, and reads of its own store."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc.aio

from groupcert.v1 import (
    applier_pb2_grpc,
    certification_pb2_grpc,
    session_pb2_grpc,
    store_pb2_grpc,
)

from ..door.answer_budget import AnswerBudget
from ..door.call_limit import Rooms
from ..door.call_times import CallTimes
from ..door.callers import Callers
from ..door.door import Door
from ..door.door_server import door_server
from ..host.loop_thread import LoopThread
from ..security.access import AccessList
from ..security.credentials import Tls
from ..services.applier_service import ApplierService, Observe
from ..services.certification import CertificationService
from ..services.session_service import SessionService
from ..services.store import StoreService
from ..wire.channels import add_port
from .replica_reads import ReplicaReads

GRACE_SECONDS = 1.0


@contextmanager
def serving_replica(
    loop: LoopThread,
    address: str,
    observe: Observe,
    reads: ReplicaReads,
    tls: Tls | None = None,
    access: AccessList | None = None,
) -> Iterator[None]:
    """Answers at `host:port` during the block, on a loop, with TLS to callers whose certificate is
    valid and who may ask.

    Raises PortTaken if another process does; InvalidSetting if a TLS file cannot serve.
    """
    server = loop.run(_started(address, observe, reads, tls, access))
    try:
        yield
    finally:
        loop.run(_stop(server, reads))


async def _started(
    address: str,
    observe: Observe,
    reads: ReplicaReads,
    tls: Tls | None,
    access: AccessList | None,
) -> grpc.aio.Server:
    door = Door(Callers(access, has_tls=tls is not None), Rooms(), CallTimes(), AnswerBudget())
    server = door_server(door)
    certification, store = CertificationService(reads), StoreService(reads)
    certification_pb2_grpc.add_CertificationServiceServicer_to_server(certification, server)
    store_pb2_grpc.add_StoreServiceServicer_to_server(store, server)
    session_pb2_grpc.add_SessionServiceServicer_to_server(
        SessionService(reads, door, certification, store), server
    )
    applier_pb2_grpc.add_ApplierServiceServicer_to_server(ApplierService(observe), server)
    add_port(server, address, tls)
    await server.start()
    return server


async def _stop(server: grpc.aio.Server, reads: ReplicaReads) -> None:
    reads.stopping.begin()
    reads.stopping.end()
    await server.stop(GRACE_SECONDS)
