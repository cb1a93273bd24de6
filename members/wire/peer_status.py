"""Asks other members for their status: which may be a donor, and how far each has read.

A member that does not answer in time counts as one that cannot be reached.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import grpc.aio

from groupcert.v1 import admin_pb2, admin_pb2_grpc, group_pb2, group_pb2_grpc

from ...certifier.errors import NotServing
from ..core.recovery_plan import Candidate
from ..core.witnesses import Progress
from ..security.credentials import Credentials
from .channels import open_aio_channel, token_metadata
from .status_documents import state_name
from .statuses import error_from

STATUS_SECONDS = 3.0
PROGRESS_SECONDS = 1.0
"""Seconds that a joiner waits for members that do not answer; it asks again."""
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)


async def ask_members(addresses: Iterable[str], credentials: Credentials) -> list[Candidate]:
    """Returns the members that answer at some addresses, and those of their views."""
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
            candidates[address] = _candidate(address, status)
            left |= {each.address for each in status.members} - asked
    return list({each.name: each for each in candidates.values()}.values())


async def ask_progress(
    addresses: Iterable[str], credentials: Credentials
) -> list[tuple[str, Progress | str]]:
    """Returns the progress of the members at some addresses, or the reasons of their silence."""
    asked = (_ask(each, credentials, PROGRESS_SECONDS) for each in addresses)
    return [
        (address, answer if isinstance(answer, str) else _progress(answer))
        for address, answer in await asyncio.gather(*asked)
    ]


async def ask_comparison(addresses: Iterable[str], credentials: Credentials) -> int:
    """Has the first member that can begin a comparison of the group's rows, and returns its
    position; 0: none can.
    """
    for address in addresses:
        async with open_peer_channel(address, credentials) as channel:
            with suppress(grpc.aio.AioRpcError):
                answer = await admin_pb2_grpc.AdminServiceStub(channel).CompareRows(
                    admin_pb2.CompareRowsRequest(),
                    timeout=STATUS_SECONDS,
                    metadata=token_metadata(credentials),
                )
                return answer.position
    return 0


def open_peer_channel(address: str, credentials: Credentials) -> grpc.aio.Channel:
    """Opens a connection that is not shared, so that a donor that came back is noticed at once."""
    return open_aio_channel(address, credentials, _OPTIONS)


def _candidate(address: str, status: group_pb2.GroupStatus) -> Candidate:
    observer = status.observer
    return Candidate(
        observer.name,
        address,
        state_name(observer),
        observer.certified_version,
        observer.committed_version,
        observer.relay_first_version,
        any(each.without_rows for each in status.members if each.name == observer.name),
    )


def _progress(status: group_pb2.GroupStatus) -> Progress:
    observer = status.observer
    return Progress(
        observer.name,
        status.group,
        observer.log_identity,
        observer.log_sequence,
        bytes.fromhex(observer.digest),
        observer.vouches_for_log,
    )


async def _ask(
    address: str, credentials: Credentials, seconds: float = STATUS_SECONDS
) -> tuple[str, group_pb2.GroupStatus | str]:
    """Returns an address and what it answers: a status, or why there is none."""
    async with open_peer_channel(address, credentials) as channel:
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
