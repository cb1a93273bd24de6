"""The server of a replica, without the replica."""

from collections.abc import Iterator
from contextlib import contextmanager

from groupcert.members.host.loop_thread import LoopThread
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.replica.replica_reads import ReplicaReads
from groupcert.members.replica.replica_server import serving_replica
from groupcert.members.security.access import AccessList
from groupcert.members.security.credentials import Tls
from groupcert.members.services.applier_service import Observe


@contextmanager
def replica_server(
    observe: Observe,
    *,
    address: str = "",
    tls: Tls | None = None,
    access: AccessList | None = None,
) -> Iterator[str]:
    """Yields where the server answers; its replica has no store."""
    address = address or f"{HOST}:{free_port()}"
    with LoopThread() as loop:
        reads = ReplicaReads("r1", loop, lambda: "source:1")
        with serving_replica(loop, address, observe, reads, tls, access):
            yield address
