"""`groupcert group`: the operator's calls."""

from typing import Any

import grpc

from groupcert.members.client.direct_calls import DirectMember
from groupcert.members.security.credentials import Credentials
from groupcert.v1 import admin_pb2
from groupcert.v1.admin_pb2_grpc import AdminServiceStub

TIMEOUT_SECONDS = 15.0


def ask(address: str, credentials: Credentials, call: str, **fields: object) -> Any:
    """Returns a member's answer to a call of `AdminService`, whose request has these fields.

    Raises: what the member raised, or NotServing.
    """
    member = DirectMember(address, credentials)
    request = getattr(admin_pb2, f"{call}Request")(**fields)
    try:
        return getattr(AdminServiceStub(member.channel), call)(request, TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        raise member.failure(error) from None
    finally:
        member.channel.close()
