"""Donors: asks other members for a copy of their state.

The rule it keeps: a member that does not answer in time is treated as one that cannot give a copy;
an answer is an error of this project, or the bytes requested.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import grpc.aio

from groupcert.v1 import recovery_pb2, recovery_pb2_grpc

from ..security.credentials import Credentials
from ..wire.channels import token_metadata
from ..wire.peer_status import open_peer_channel
from ..wire.statuses import error_from

OPEN_SECONDS = 120.0
"""Seconds for a donor to make a copy: it reads all of its files once."""
CHUNK_SECONDS = 10.0
"""Seconds that a donor may leave its reader without a chunk."""
CLOSE_SECONDS = 3.0
CLOSE_TRIES = 2
"""Tries of closing a copy, if its reader needs the log after it."""


class Chunk(NamedTuple):
    """A part of a file of a copy; `checksum`: XXH3, 64 bits, of the data."""

    file: str
    offset: int
    data: bytes
    checksum: int


class Donor:
    """One member, as a donor."""

    def __init__(
        self, address: str, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]
    ) -> None:
        self.address = address
        self._metadata = metadata
        self._stub = recovery_pb2_grpc.RecoveryServiceStub(channel)

    async def open_copy(self, asker: str, *, without_rows: bool = False) -> tuple[str, bytes]:
        """Makes the donor make a copy; returns its id, and its manifest as received.

        Raises:
            GroupcertError, MemberFailed: It made none.
        """
        request = recovery_pb2.OpenCopyRequest(asker=asker, without_rows=without_rows)
        try:
            response = await self._stub.OpenCopy(
                request, timeout=OPEN_SECONDS, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise error_from(error, self.address) from error
        return response.copy_id, response.manifest

    async def read_copy(self, copy_id: str, file: str, offset: int) -> AsyncGenerator[Chunk, None]:
        """Yields the copy's chunks from `offset` on.

        Raises:
            GroupcertError, MemberFailed: It gives no more.
        """
        request = recovery_pb2.ReadCopyRequest(copy_id=copy_id, file=file, offset=offset)
        call = self._stub.ReadCopy(request, metadata=self._metadata)
        try:
            while True:
                async with asyncio.timeout(CHUNK_SECONDS):
                    message = await call.read()
                if not isinstance(message, recovery_pb2.ReadCopyResponse):
                    return
                yield Chunk(message.file, message.offset, message.data, message.checksum)
        except grpc.aio.AioRpcError as error:
            raise error_from(error, self.address) from error
        finally:
            call.cancel()

    async def close_copy(self, copy_id: str, *, reads_on: bool) -> None:
        """Closes the copy; if that fails, the donor finds out by itself. `reads_on`: the log after
        it is needed.
        """
        request = recovery_pb2.CloseCopyRequest(copy_id=copy_id, reads_on=reads_on)
        for _ in range(CLOSE_TRIES if reads_on else 1):
            with suppress(grpc.aio.AioRpcError):
                await self._stub.CloseCopy(
                    request,
                    timeout=CLOSE_SECONDS,
                    metadata=self._metadata,
                    wait_for_ready=reads_on,
                )
                return


@asynccontextmanager
async def donor_at(address: str, credentials: Credentials) -> AsyncIterator[Donor]:
    """Yields the member at an address, for the time of the block."""
    async with open_peer_channel(address, credentials) as channel:
        yield Donor(address, channel, token_metadata(credentials))
