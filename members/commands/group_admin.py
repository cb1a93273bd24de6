"""`groupcert group`: the operator's calls, and the group that they are about to change."""

from collections.abc import Sequence
from typing import Any

import grpc

from groupcert.v1 import admin_pb2, group_pb2
from groupcert.v1.admin_pb2_grpc import AdminServiceStub
from groupcert.v1.group_pb2_grpc import GroupServiceStub

from ...certifier.errors import Unavailable
from ..client.direct_calls import DirectMember
from ..security.credentials import Credentials

TIMEOUT_SECONDS = 15.0


def ask(address: str, credentials: Credentials, call: str, **fields: object) -> Any:
    """Returns a member's answer to a call of `AdminService`, whose request has these fields.

    Raises: what the member raised, or NotServing.
    """
    request = getattr(admin_pb2, f"{call}Request")(**fields)
    return _answer(address, credentials, AdminServiceStub, call, request)


def group_at(addresses: Sequence[str], credentials: Credentials) -> group_pb2.GroupStatus:
    """Returns the group as the first of the members sees it that answers.

    Raises: what the last one raised, or NotServing.
    """
    first, *others = addresses
    request = group_pb2.GetStatusRequest()
    try:
        answer: group_pb2.GetStatusResponse = _answer(
            first, credentials, GroupServiceStub, "GetStatus", request
        )
        return answer.status
    except Unavailable:
        if not others:
            raise
    return group_at(others, credentials)


def _answer(
    address: str, credentials: Credentials, stub: type[Any], call: str, request: object
) -> Any:
    member = DirectMember(address, credentials)
    try:
        return getattr(stub(member.channel), call)(request, TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        raise member.failure(error) from None
    finally:
        member.channel.close()
