"""Sources of a replica: members whose binary log it follows, one at a time.

The rule it keeps: GTIDs name what the replica has received, so that it may continue at another
member if one hangs up; every member has the same transactions in the same order.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, Self

import grpc
import structlog

from groupcert.v1.binary_log_pb2 import SubscribeRequest, SubscribeResponse
from groupcert.v1.binary_log_pb2_grpc import BinaryLogServiceStub

from ...applier.queue.relay_group import RelayEntry
from ...certifier.errors import Fenced, Unavailable
from ...certifier.gtid_set import GtidSet
from ..client.direct_calls import DirectMember
from ..errors.permissions import CallNotAllowed, NotAuthenticated
from ..errors.transactions import MemberFailed
from ..security.credentials import ANONYMOUS, Credentials
from ..wire.binary_log_entries import EventJoiner, entries_from

PAUSE_SECONDS = 0.5
"""Seconds between two sources that do not answer."""
SILENCE_SECONDS_MAX = 10.0
"""Seconds; a source sends something every second, and is given up after so long without."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class SourceNews(NamedTuple):
    """Some entries, or none; and how far their source is, whose name is empty if none answers."""

    entries: Sequence[RelayEntry]
    source: str
    source_version: int


def in_turn(
    names: Sequence[str],
    follow: Callable[[str], Iterator[SourceNews]],
    stopped: threading.Event,
    *,
    refusals: tuple[type[Exception], ...],
    lost: tuple[type[Exception], ...],
) -> Iterator[SourceNews]:
    """Yields the news of sources, each followed until it fails, then the next one, until `stopped`.

    Raises:
        An error of `refusals`, once all sources have raised such ones, one after the other; at once
        any that is neither of these nor of `lost`.
    """
    refused = 0
    while not stopped.is_set():
        for name in names:
            if stopped.is_set():
                return
            try:
                yield from follow(name)
                refused = 0
            except refusals as error:
                refused += 1
                if refused >= len(names):
                    raise
                log.warning("source_refuses", source=name, text=str(error))
            except lost as error:
                refused = 0  # This source may be able to serve it, once it answers.
                log.warning("source_unavailable", source=name, text=str(error))
            stopped.wait(PAUSE_SECONDS)
            yield SourceNews((), "", 0)  # The caller may have a reason to end.


class Sources(Protocol):
    """Those that a replica may follow, one at a time. `connected`: which one; empty if none."""

    connected: str

    def follow(self, received: GtidSet, next_position: Callable[[], int]) -> Iterator[SourceNews]:
        """Yields entries that are not in `received`, which the caller keeps up to date, until
        `stop`.
        """
        ...

    def stop(self) -> None:
        """Ends `follow`, from any thread."""
        ...


class ReplicaSources:
    """The members that a replica may follow."""

    def __init__(
        self,
        addresses: Sequence[str],
        replica: str,
        credentials: Credentials = ANONYMOUS,
        transaction_bytes_max: int = 1 << 30,
    ) -> None:
        """Follows members at `addresses`; takes `transaction_bytes_max` bytes a transaction."""
        self.connected = ""
        self._transaction_bytes_max = transaction_bytes_max
        self._addresses = addresses
        self._replica = replica
        self._credentials = credentials
        self._stopped = threading.Event()
        self._hang_up: Callable[[], object] = lambda: None

    def follow(self, received: GtidSet, next_position: Callable[[], int]) -> Iterator[SourceNews]:
        """Yields entries that are not in `received`, which the caller keeps up to date, until
        `stop`.

        Raises:
            PurgedAtSource, ReplicaAhead: No source can serve this replica.
            NotAuthenticated, CallNotAllowed: No source lets it in.
            TransactionTooLarge: A transaction is larger than this replica takes.
        """
        refusals = (Fenced, CallNotAllowed, NotAuthenticated)
        lost = (Unavailable, MemberFailed)

        def follow(address: str) -> Iterator[SourceNews]:
            return self._follow(address, received, next_position)

        yield from in_turn(self._addresses, follow, self._stopped, refusals=refusals, lost=lost)

    def stop(self) -> None:
        """Ends `follow`, from any thread."""
        self._stopped.set()
        self._hang_up()

    def _follow(
        self, address: str, received: GtidSet, next_position: Callable[[], int]
    ) -> Iterator[SourceNews]:
        remote = DirectMember(address, self._credentials)
        joiner = EventJoiner(self._transaction_bytes_max)
        request = SubscribeRequest(replica=self._replica, gtid_executed=str(received))
        try:
            call = BinaryLogServiceStub(remote.channel).Subscribe(request)
            self._hang_up = call.cancel
            # `stop` may have come before there was a call that it could cancel.
            if self._stopped.is_set():
                return
            response: SubscribeResponse
            with _Listening(call.cancel) as listening:
                for response in call:
                    listening.heard()
                    self.connected = address
                    joiner.take(response)
                    entries = entries_from(response, next_position())
                    yield SourceNews(entries, response.source, response.source_version)
                    listening.listen()
        except grpc.RpcError as error:
            if not self._stopped.is_set():
                raise remote.failure(error) from error
        finally:
            self.connected = ""
            self._hang_up = lambda: None
            remote.channel.close()


class _Listening:
    """Cancels the call to a source that is silent for too long while the caller waits for it: if
    its machine has vanished, or its process hangs, no error comes.
    """

    def __init__(self, hang_up: Callable[[], object]) -> None:
        self._hang_up = hang_up
        self._since = math.inf
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._run, name="listening", daemon=True)

    def __enter__(self) -> Self:
        self.listen()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()

    def listen(self) -> None:
        """Begins a wait for the source."""
        self._since = time.monotonic()

    def heard(self) -> None:
        """Ends a wait: the source has sent something, and the caller handles it."""
        self._since = math.inf

    def _run(self) -> None:
        while not self._ended.wait(SILENCE_SECONDS_MAX / 10):
            if time.monotonic() - self._since > SILENCE_SECONDS_MAX:
                self._hang_up()
                return
