"""Decides who may look at a member's console over HTTP.

With an access list, a principal with the role `observe`: its token comes as a bearer token or, as
browsers ask people for it, as a password under any name. The rule it keeps is that of
`security/access.py`; over HTTP nothing is encrypted, so tokens count from this machine only.
Without an access list, whoever can connect may look, but no page of another site can: a browser
that was sent here under a name of that site's is refused.
"""

import base64
import binascii
from collections.abc import Iterable
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple
from wsgiref.types import WSGIEnvironment

from ..errors.permissions import CallNotAllowed, NotAuthenticated
from ..security.access import CONSOLE, AccessList, AccessRules, Caller

FOREIGN_HOST = (
    "this member has no such name: ask by its address, or have an access list, which lets any name"
)
CHALLENGES = ('Basic realm="groupcert console", charset="UTF-8"', 'Bearer realm="groupcert"')
_BASIC = "basic "


class Refusal(NamedTuple):
    """The answer to who may not look."""

    status: HTTPStatus
    text: str
    challenges: tuple[str, ...] = ()


class Viewers:
    """Those who may look at one member's console."""

    def __init__(self, access: AccessList | None, addresses: Iterable[str] = ()) -> None:
        """Admits by `access`; None: whoever comes by one of the `addresses`, `host:port`, by an IP
        address, or by a name without a dot, which is one of a local network.
        """
        self._rules = None if access is None else AccessRules(access)
        self._hosts = {_host_of(each) for each in addresses}

    def refusal(self, environ: WSGIEnvironment) -> Refusal | None:
        """Returns the reason to refuse a request; None: it may look."""
        if self._rules is None:
            host = _host_of(environ.get("HTTP_HOST", ""))
            if "." not in host or host in self._hosts or _is_ip(host):
                return None
            return Refusal(HTTPStatus.FORBIDDEN, FOREIGN_HOST)
        authorization = _bearer(environ.get("HTTP_AUTHORIZATION", ""))
        caller = Caller((), authorization, _is_loopback(environ["REMOTE_ADDR"]))
        try:
            self._rules.admit(CONSOLE, caller)
        except NotAuthenticated as error:
            return Refusal(HTTPStatus.UNAUTHORIZED, str(error), CHALLENGES)
        except CallNotAllowed as error:
            return Refusal(HTTPStatus.FORBIDDEN, str(error))
        return None


def _bearer(authorization: str) -> str:
    """Returns a password as the bearer token that it is; anything else as it comes."""
    if authorization[: len(_BASIC)].lower() != _BASIC:
        return authorization
    try:
        decoded = base64.b64decode(authorization[len(_BASIC) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return authorization
    return f"Bearer {decoded.partition(':')[2]}"


def _host_of(address: str) -> str:
    """Returns the host of `host` or `host:port`."""
    if address.startswith("["):
        return address[1:].partition("]")[0].lower()
    return address.partition(":")[0].lower()


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback
