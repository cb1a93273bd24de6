"""Follows the binary log of the group's members on the event loop, one member at a time.

The rule it keeps: GTIDs say what was received, so that it goes on at another member if one does not
answer; every member has the same transactions in the same order.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing

import structlog

from groupcert.v1.binary_log_pb2 import BinaryLogEvent, SubscribeRequest, SubscribeResponse
from groupcert.v1.binary_log_pb2_grpc import BinaryLogServiceStub

from ...certifier.errors import Fenced, NotServing, Unavailable
from ...certifier.gtid import Gtid
from ...certifier.gtid_set import GtidSet
from ..client.remote_member import RemoteMember
from ..errors.permissions import CallNotAllowed, NotAuthenticated
from ..errors.transactions import MemberFailed
from ..replica.sources import PAUSE_SECONDS, SILENCE_SECONDS_MAX
from ..security.credentials import Credentials
from ..wire.binary_log_entries import EventPieces
from .commit_order import Entry
from .rows import TRANSACTION_BYTES_MAX

NAME = "postgresql"
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class LogFollower:
    """Follows the members' log: transactions that they have committed and a server has not."""

    def __init__(
        self, addresses: Sequence[str], credentials: Credentials, executed: GtidSet
    ) -> None:
        """Begins behind what is executed at the server."""
        self.connected = ""
        """The member that is followed now; "": none answers."""
        self.source_version = 0
        """The newest version that a member has committed, as far as one has said."""
        self._addresses = addresses
        self._credentials = credentials
        self._received = executed.copy()

    async def entries(self) -> AsyncIterator[list[Entry]]:
        """Yields transactions, in their order, without an end.

        Raises:
            PurgedAtSource, ReplicaAhead: No member has what the server lacks.
            NotAuthenticated, CallNotAllowed: No member lets it in.
            TransactionTooLarge: A transaction has more than `TRANSACTION_BYTES_MAX` bytes.
        """
        refused = 0
        while True:
            for address in self._addresses:
                try:
                    async with aclosing(self._follow(address)) as followed:
                        async for entries in followed:
                            refused = 0
                            yield entries
                except (Fenced, CallNotAllowed, NotAuthenticated) as error:
                    refused += 1
                    if refused >= len(self._addresses):
                        raise
                    log.warning("source_refuses", source=address, text=str(error))
                except (Unavailable, MemberFailed) as error:
                    refused = 0  # It may be able to serve, once it answers.
                    log.warning("source_unavailable", source=address, text=str(error))
                finally:
                    self.connected = ""
                await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self, address: str) -> AsyncGenerator[list[Entry], None]:
        member = RemoteMember(address, self._credentials)
        events = EventPieces(TRANSACTION_BYTES_MAX)
        request = SubscribeRequest(replica=NAME, gtid_executed=str(self._received))
        try:
            call = BinaryLogServiceStub(member.channel).Subscribe(request, metadata=member.metadata)
            async with aclosing(member.received(call)) as responses:
                while True:
                    async with asyncio.timeout(SILENCE_SECONDS_MAX):
                        response: SubscribeResponse = await anext(responses)
                    self.connected = address
                    self.source_version = max(self.source_version, response.source_version)
                    if entries := self._new(events.of(response.events)):
                        yield entries
        except (StopAsyncIteration, TimeoutError):
            state = f"silent for {SILENCE_SECONDS_MAX} s, or at an end"
            raise NotServing(member=address, state=state) from None
        finally:
            await member.close()

    def _new(self, events: Iterable[tuple[BinaryLogEvent, list[bytes]]]) -> list[Entry]:
        entries = []
        for event, pieces in events:
            if event.gtid_number:
                gtid = Gtid(event.gtid_source, event.gtid_number)
                self._received.add(gtid)
                entries.append(Entry(event.version, gtid, pieces, frozenset(event.write_set)))
        return entries
