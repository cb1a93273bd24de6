"""`groupcert group`, `groupcert bootstrap`: the operator's calls, and a group's log made once."""

import asyncio
from typing import Any

import grpc

from groupcert.members.client.direct_calls import DirectMember
from groupcert.members.errors.membership import AlreadyBootstrapped
from groupcert.members.security.credentials import Credentials
from groupcert.members.total_order.log_options import LogOptions, make_order
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


def bootstrap(options: LogOptions, *, if_absent: bool) -> str:
    """Makes the group's log, once, and returns a line that says so.

    Raises:
        AlreadyBootstrapped: It is there; not with `if_absent`.
        LogServerUnavailable: No log server answered in time.
    """
    made, created = asyncio.run(_make_log(options))
    if not made and not if_absent:
        raise AlreadyBootstrapped(group=options.group, created=created)
    how = "bootstrapped" if made else "was bootstrapped before"
    return f"group {options.group} {how}, at {created}: start its members"


async def _make_log(options: LogOptions) -> tuple[bool, str]:
    asking, making = make_order(options), make_order(options)
    try:
        made = not await asking.exists()
        state = await making.open(create=made)
    finally:
        await asking.close()
        await making.close()
    return made, state.identity.created
