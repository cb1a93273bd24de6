"""Other members as they are asked for their state: their status, and the copies that they give.

The rule it keeps: a member that does not answer in time is one that cannot give anything; what it
answers with is an error of this project, or the bytes it was asked for.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import grpc.aio

from certifier.errors import NotServing
from groupcert.v1 import group_pb2, group_pb2_grpc, recovery_pb2, recovery_pb2_grpc
from members.channels import open_aio_channel, token_metadata
from members.credentials import Credentials
from members.recovery_choice import Candidate
from members.status import error_from
from members.witnesses import Progress

STATUS_SECONDS = 3.0
PROGRESS_SECONDS = 1.0
"""How long a joiner waits for those that do not answer; it asks again."""
OPEN_SECONDS = 120.0
"""How long a donor may take to make a copy: it reads all of its files once."""
CHUNK_SECONDS = 10.0
"""How long it may leave its reader without a chunk."""
CLOSE_SECONDS = 3.0
CLOSE_TRIES = 2
"""Where the log is needed after a copy."""
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)


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

    async def open_copy(self, asker: str) -> tuple[str, bytes]:
        """Has it make a copy: its id, and its manifest as it came.

        Raises:
            GroupcertError, MemberFailed: It does not.
        """
        request = recovery_pb2.OpenCopyRequest(asker=asker)
        try:
            response = await self._stub.OpenCopy(
                request, timeout=OPEN_SECONDS, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise error_from(error, self.address) from error
        return response.copy_id, response.manifest

    async def read_copy(self, copy_id: str, file: str, offset: int) -> AsyncGenerator[Chunk, None]:
        """The copy's chunks from a place on.

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
        """Tells it that the copy is needed no more; it finds out by itself where that fails.
        `reads_on`: the log after it is.
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
    """A member at an address, for the time of the block."""
    async with _channel(address, credentials) as channel:
        yield Donor(address, channel, token_metadata(credentials))


async def ask_members(addresses: Iterable[str], credentials: Credentials) -> list[Candidate]:
    """Members that answer at some addresses, and those of their views."""
    asked: set[str] = set()
    candidates: dict[str, Candidate] = {}
    left = set(addresses)
    while left:
        asked |= left
        answers = await asyncio.gather(*(_ask(each, credentials) for each in sorted(left)))
        left = set()
        for address, status in answers:
            if isinstance(status, str):
                candidates.setdefault(address, Candidate(address, address, status, 0, 0))
                continue
            candidates[address] = _candidate(address, status.observer)
            left |= {each.address for each in status.members} - asked
    return list({each.name: each for each in candidates.values()}.values())


async def ask_progress(
    addresses: Iterable[str], credentials: Credentials
) -> list[tuple[str, Progress | str]]:
    """How far the members at some addresses have read, or why they do not say."""
    asked = (_ask(each, credentials, PROGRESS_SECONDS) for each in addresses)
    return [
        (address, answer if isinstance(answer, str) else _progress(answer))
        for address, answer in await asyncio.gather(*asked)
    ]


def _channel(address: str, credentials: Credentials) -> grpc.aio.Channel:
    """A connection of its own, so that a donor that came back is noticed at once."""
    return open_aio_channel(address, credentials.tls, _OPTIONS)


def _candidate(address: str, observer: group_pb2.MemberStatus) -> Candidate:
    return Candidate(
        observer.name,
        address,
        group_pb2.MemberState.Name(observer.state).removeprefix("MEMBER_STATE_"),
        observer.certified_version,
        observer.committed_version,
    )


def _progress(status: group_pb2.GroupStatus) -> Progress:
    observer = status.observer
    is_online = observer.state == group_pb2.MEMBER_STATE_ONLINE
    return Progress(
        observer.name,
        status.group,
        observer.log_identity,
        observer.log_sequence,
        bytes.fromhex(observer.digest),
        observer.vouches_for_log or is_online,  # Earlier releases say the latter only.
    )


async def _ask(
    address: str, credentials: Credentials, seconds: float = STATUS_SECONDS
) -> tuple[str, group_pb2.GroupStatus | str]:
    """An address and what it answers: a status, or why there is none."""
    async with _channel(address, credentials) as channel:
        stub = group_pb2_grpc.GroupServiceStub(channel)
        try:
            request = group_pb2.GetStatusRequest()
            response = await stub.GetStatus(
                request, timeout=seconds, metadata=token_metadata(credentials)
            )
        except grpc.aio.AioRpcError as error:
            failure = error_from(error, address, has_tls=credentials.tls is not None)
            refused = not isinstance(failure, NotServing)
            return address, f"REFUSING ({failure})" if refused else "UNREACHABLE"
        return address, response.status
