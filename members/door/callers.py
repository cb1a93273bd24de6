"""Identifies who makes a call, and checks whether he may.

The rule it keeps: each call is judged by what TLS has checked on its own connection and by its own
headers; nothing is remembered that another caller could inherit.
"""

from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import grpc
import grpc.aio

from ..security.access import AccessList, AccessRules, Caller, Role
from ..wire.channels import AUTHORIZATION

LOOPBACK_PEERS = ("ipv4:127.", "ipv6:[::1]:", "ipv6:%5B::1%5D:", "unix:")
AnyContext: TypeAlias = "grpc.aio.ServicerContext[Any, Any] | grpc.ServicerContext"
CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""The caller of the call that is being answered: a principal, or a connection."""
ROLES: ContextVar[frozenset[Role]] = ContextVar("ROLES", default=frozenset())
"""The roles of this caller."""


class Admitted(NamedTuple):
    """A caller that may make a call: a principal's name, or without an access list its connection,
    which has no roles.
    """

    name: str
    roles: frozenset[Role] = frozenset()


class Callers:
    """Identifies callers."""

    def __init__(self, access: AccessList | None, *, has_tls: bool) -> None:
        """Admits by `access`; None: whoever can connect."""
        self._rules = None if access is None else AccessRules(access)
        self._has_tls = has_tls

    def admit(self, call: str, context: AnyContext) -> Admitted:
        """Returns the caller of a call. Raises NotAuthenticated or CallNotAllowed."""
        if self._rules is None:
            return Admitted(context.peer())
        principal = self._rules.admit(call, _caller(context, has_tls=self._has_tls))
        return Admitted(principal.name, principal.roles)


def _caller(context: AnyContext, *, has_tls: bool) -> Caller:
    names: tuple[str, ...] = ()
    if has_tls:
        shown = context.auth_context()
        values = (*shown.get("x509_common_name", ()), *shown.get("peer_dns", ()))
        names = tuple(value.decode(errors="replace") for value in values)
    authorization = ""
    for name, value in context.invocation_metadata() or ():
        if name == AUTHORIZATION:
            authorization = value if isinstance(value, str) else value.decode(errors="replace")
    is_private = has_tls or context.peer().startswith(LOOPBACK_PEERS)
    return Caller(names, authorization, is_private)
