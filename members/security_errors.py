"""What certificates, tokens and lists of who may do what refuse, in the tree of
`certifier/errors.py`.

    InvalidRequest
    ├── CallNotAllowed            CALL_NOT_ALLOWED
    └── NotAuthenticated          NOT_AUTHENTICATED
    Unavailable
    └── TlsRefused                TLS_REFUSED
    Fenced
    └── MemberNotAllowed          MEMBER_NOT_ALLOWED

The rule is that of the whole tree: a leaf's `reason` is never reused, and its message gives the
value, the limit and the next step. No message has a token, or a part of one.
"""

from dataclasses import dataclass
from typing import ClassVar

from certifier.errors import Fenced, InvalidRequest, Unavailable, quoted


@dataclass(eq=False, kw_only=True)
class CallNotAllowed(InvalidRequest):
    """A known principal called what none of its roles allows."""

    reason: ClassVar[str] = "CALL_NOT_ALLOWED"
    principal: str
    call: str
    roles: str

    def __str__(self) -> str:
        return (
            f"principal {quoted(self.principal)} may not call {self.call}, which needs the role "
            f"{self.roles}: grant it in the member's access list, or call as somebody else"
        )


@dataclass(eq=False, kw_only=True)
class NotAuthenticated(InvalidRequest):
    """Nobody that the access list knows makes the call."""

    reason: ClassVar[str] = "NOT_AUTHENTICATED"
    call: str
    problem: str

    def __str__(self) -> str:
        return (
            f"call {self.call} has no known caller ({self.problem}): show a token or a "
            "certificate that the member's access list has"
        )


@dataclass(eq=False, kw_only=True)
class TlsRefused(Unavailable):
    """There is no TLS connection, since one side does not take what the other one shows."""

    reason: ClassVar[str] = "TLS_REFUSED"
    address: str
    problem: str

    def __str__(self) -> str:
        return (
            f"no TLS connection to member {self.address}: {self.problem}; "
            "compare tls_authority and the certificates at both ends, and the address"
        )


@dataclass(eq=False, kw_only=True)
class MemberNotAllowed(Fenced):
    """A name is not in the group's allow-list of members."""

    reason: ClassVar[str] = "MEMBER_NOT_ALLOWED"
    refused: str
    allowed: str

    def __str__(self) -> str:
        return (
            f"member {quoted(self.refused)} is not allowed, members_allowed of the group has "
            f"{quoted(self.allowed)}: add it there, or start the member under one of these names"
        )
