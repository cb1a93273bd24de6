"""What certificates, tokens and lists of who may do what refuse, in the tree of
`certifier/errors.py`.

    InvalidRequest
    ├── CallNotAllowed            CALL_NOT_ALLOWED
    ├── KeyReserved               KEY_RESERVED
    └── NotAuthenticated          NOT_AUTHENTICATED
    Unavailable
    └── TlsRefused                TLS_REFUSED
    Fenced
    └── MemberNotAllowed          MEMBER_NOT_ALLOWED

The rule is that of the whole tree: a leaf's `reason` is never reused, and its message gives the
value, the limit and the next step. No message has a token, or a part of one.
"""

from ...certifier.errors import Fenced, InvalidRequest, Unavailable


class CallNotAllowed(InvalidRequest):
    """A known principal called what none of its roles allows."""

    message = (
        "principal {principal!q} may not call {call}, which needs the role {roles}: grant it in "
        "the member's access list, or call as somebody else"
    )
    principal: str
    call: str
    roles: str


class KeyReserved(InvalidRequest):
    """A caller wrote a key that the group takes from members of PostgreSQL servers alone."""

    message = (
        "{caller!q} may not write key {key!q}, which postgresql_tables of the group ({tables!q}) "
        "reserves for the role postgresql: write the row by SQL, or grant that role in the "
        "member's access list"
    )
    caller: str
    key: str
    tables: str


class NotAuthenticated(InvalidRequest):
    """Nobody that the access list knows makes the call."""

    message = (
        "call {call} has no known caller ({problem}): show a token or a certificate that the "
        "member's access list has"
    )
    call: str
    problem: str


class TlsRefused(Unavailable):
    """There is no TLS connection, since one side does not take what the other one shows."""

    message = (
        "no TLS connection to member {address}: {problem}; compare tls_authority and the "
        "certificates at both ends, and the address"
    )
    address: str
    problem: str


class MemberNotAllowed(Fenced):
    """A name is not in the group's allow-list of members."""

    message = (
        "member {refused!q} is not allowed, members_allowed of the group has {allowed!q}: add it "
        "there, or start the member under one of these names"
    )
    refused: str
    allowed: str
