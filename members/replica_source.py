"""The sources of a replica: members whose binary log it follows, one at a time.

The rule it keeps: what the replica has received is named by GTIDs, so that it may go on at another
member wherever one hangs up; every member has the same transactions in the same order.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import grpc
import structlog

from applier.relay_queue import RelayEntry
from certifier.errors import Fenced, Unavailable
from certifier.gtid_set import GtidSet
from groupcert.v1.binary_log_pb2 import SubscribeRequest, SubscribeResponse
from groupcert.v1.binary_log_pb2_grpc import BinaryLogServiceStub
from members.convert import entries_from
from members.failures import MemberFailed
from members.remote import RemoteMember
from members.status import error_from

PAUSE_SECONDS = 0.5
"""Between two sources that do not answer."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class SourceNews(NamedTuple):
    """Some entries, or none; and how far their source is."""

    entries: Sequence[RelayEntry]
    source: str
    source_version: int


class ReplicaSources:
    """The members that a replica may follow."""

    def __init__(self, addresses: Sequence[str], replica: str) -> None:
        self.connected = ""
        self._addresses = addresses
        self._replica = replica
        self._stopped = threading.Event()
        self._hang_up: Callable[[], object] = lambda: None

    def follow(self, received: GtidSet, next_position: Callable[[], int]) -> Iterator[SourceNews]:
        """Yields what is not in `received`, which the caller brings up to date, until `stop`.

        Raises:
            PurgedAtSource, ReplicaAhead: No source can serve this replica.
        """
        refused = 0
        while not self._stopped.is_set():
            for address in self._addresses:
                if self._stopped.is_set():
                    return
                try:
                    yield from self._follow(address, received, next_position)
                    refused = 0
                except Fenced as error:
                    refused += 1
                    if refused >= len(self._addresses):
                        raise
                    log.warning("source_refuses", source=address, text=str(error))
                except (Unavailable, MemberFailed) as error:
                    log.warning("source_unavailable", source=address, text=str(error))
                finally:
                    self.connected = ""
                self._stopped.wait(PAUSE_SECONDS)

    def stop(self) -> None:
        """Ends `follow`, from any thread."""
        self._stopped.set()
        self._hang_up()

    def _follow(
        self, address: str, received: GtidSet, next_position: Callable[[], int]
    ) -> Iterator[SourceNews]:
        remote = RemoteMember(address)
        request = SubscribeRequest(replica=self._replica, gtid_executed=str(received))
        try:
            call = BinaryLogServiceStub(remote.channel).Subscribe(request)
            self._hang_up = call.cancel
            if self._stopped.is_set():
                return
            response: SubscribeResponse
            for response in call:
                self.connected = address
                entries = entries_from(response, next_position())
                yield SourceNews(entries, response.source, response.source_version)
        except grpc.RpcError as error:
            if not self._stopped.is_set():
                raise error_from(error, address) from error
        finally:
            self._hang_up = lambda: None
            remote.channel.close()
