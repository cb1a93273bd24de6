"""The access list: principals, their roles, and the role that each call needs.

The rule it keeps: what is not granted is refused. A principal is known by a name in its certificate
or by its token, of which only the SHA-256 is kept; a call that the table does not have takes the
role `admin`. Without an access list, any caller that can connect may do everything.
"""

import hashlib
import hmac
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ..errors.permissions import CallNotAllowed, NotAuthenticated

SHA256_BYTES = 32
_SCHEME = "bearer "


class Role(StrEnum):
    """The rights of a principal; no role includes another one."""

    READ = "read"
    """Snapshots and what is read of them, the status."""
    WRITE = "write"
    """Commits, certification and its outcomes."""
    REPLICATE = "replicate"
    """The binary log, as a replica follows it."""
    POSTGRESQL = "postgresql"
    """Rows of `postgresql_tables`, and schema changes: `groupcert postgresql ddl`."""
    OBSERVE = "observe"
    """Status, history, the applier's status, settings, the console."""
    MEMBER = "member"
    """What members ask of each other."""
    ADMIN = "admin"
    """What changes the group, or removes what replicas may need."""


ROLES_OF_CALL: Mapping[str, frozenset[Role]] = {
    "/groupcert.v1.StoreService/HoldSession": frozenset({Role.READ, Role.POSTGRESQL}),
    "/groupcert.v1.StoreService/OpenSnapshot": frozenset({Role.READ, Role.POSTGRESQL}),
    "/groupcert.v1.StoreService/CloseSnapshot": frozenset({Role.READ, Role.POSTGRESQL}),
    "/groupcert.v1.StoreService/Get": frozenset({Role.READ, Role.POSTGRESQL}),
    "/groupcert.v1.StoreService/Scan": frozenset({Role.READ}),
    "/groupcert.v1.StoreService/Commit": frozenset({Role.WRITE, Role.POSTGRESQL}),
    "/groupcert.v1.StoreService/CommitStream": frozenset({Role.WRITE, Role.POSTGRESQL}),
    "/groupcert.v1.SessionService/Session": frozenset({Role.READ, Role.WRITE, Role.POSTGRESQL}),
    "/groupcert.v1.CertificationService/Certify": frozenset({Role.WRITE, Role.POSTGRESQL}),
    "/groupcert.v1.CertificationService/CertifyStream": frozenset({Role.WRITE, Role.POSTGRESQL}),
    "/groupcert.v1.CertificationService/GetOutcome": frozenset({Role.WRITE, Role.POSTGRESQL}),
    "/groupcert.v1.GroupService/GetStatus": frozenset(
        {Role.READ, Role.POSTGRESQL, Role.OBSERVE, Role.MEMBER, Role.ADMIN}
    ),
    "/groupcert.v1.GroupService/WatchStatus": frozenset({Role.READ, Role.OBSERVE}),
    "/groupcert.v1.GroupService/ReadHistory": frozenset({Role.OBSERVE}),
    **dict.fromkeys(
        (
            "/groupcert.v1.RecoveryService/OpenCopy",
            "/groupcert.v1.RecoveryService/ReadCopy",
            "/groupcert.v1.RecoveryService/CloseCopy",
        ),
        frozenset({Role.MEMBER, Role.ADMIN}),
    ),
    "/groupcert.v1.AdminService/GetSettings": frozenset({Role.OBSERVE, Role.MEMBER, Role.ADMIN}),
    **dict.fromkeys(
        (
            "/groupcert.v1.AdminService/ChangeSettings",
            "/groupcert.v1.AdminService/SwitchMode",
            "/groupcert.v1.AdminService/SetPrimary",
            "/groupcert.v1.AdminService/ExpelMember",
            "/groupcert.v1.AdminService/ForgetMember",
            "/groupcert.v1.AdminService/Leave",
            "/groupcert.v1.AdminService/Rejoin",
            "/groupcert.v1.AdminService/SkipMessage",
            "/groupcert.v1.AdminService/ReadComparedRows",
        ),
        frozenset({Role.ADMIN}),
    ),
    "/groupcert.v1.AdminService/CompareRows": frozenset({Role.MEMBER, Role.ADMIN}),
    "/groupcert.v1.ApplierService/GetApplierStatus": frozenset({Role.OBSERVE}),
    "/groupcert.v1.BinaryLogService/Subscribe": frozenset({Role.REPLICATE, Role.POSTGRESQL}),
    "/groupcert.v1.BinaryLogService/ListFiles": frozenset({Role.REPLICATE}),
    "/groupcert.v1.BinaryLogService/Rotate": frozenset({Role.ADMIN}),
    "/groupcert.v1.BinaryLogService/Purge": frozenset({Role.ADMIN}),
    "/grpc.health.v1.Health/Check": frozenset(Role),
    "/grpc.health.v1.Health/List": frozenset(Role),
    "/grpc.health.v1.Health/Watch": frozenset(Role),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": frozenset(Role),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": frozenset(Role),
}
"""The roles of each call; any of them is enough. Calls in a session stream need their own, too."""
CONSOLE = "the console"
"""Stands for the pages that a member serves over HTTP, among calls."""
_ROLES = {**ROLES_OF_CALL, CONSOLE: frozenset({Role.OBSERVE})}
_UNKNOWN_CALL = frozenset({Role.ADMIN})


def _digest_checked(text: str) -> str:
    lower = text.lower()
    if len(lower) != 2 * SHA256_BYTES or not set(lower) <= set("0123456789abcdef"):
        raise ValueError("expected the SHA-256 of a token, 64 hexadecimal digits")
    return lower


class Principal(BaseModel):
    """A caller on the access list."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str = Field(min_length=1, max_length=64)
    """What messages call it."""
    certificate: str | None = Field(default=None, min_length=1)
    """A common name, or a DNS name among the alternative names, of its certificate."""
    token_sha256: Annotated[str, AfterValidator(_digest_checked)] | None = Field(
        default=None, repr=False
    )
    """The SHA-256 of its token, in hexadecimal digits."""
    roles: frozenset[Role] = Field(min_length=1)
    """What it may do."""

    @model_validator(mode="after")
    def _check_means(self) -> "Principal":
        if (self.certificate is None) == (self.token_sha256 is None):
            raise ValueError(f"{self.name}: give either certificate or token_sha256")
        return self


class AccessList(BaseModel):
    """The principals that may call a member."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    principal: tuple[Principal, ...]

    @model_validator(mode="after")
    def _check_principals(self) -> "AccessList":
        if not self.principal:
            raise ValueError("nobody is named, so that nobody could call: name a principal")
        for field in ("name", "certificate", "token_sha256"):
            values = [value for each in self.principal if (value := getattr(each, field))]
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                shown = "a token_sha256" if field == "token_sha256" else f"{field} {twice}"
                raise ValueError(f"{shown} is given twice: each principal has its own")
        return self


class Caller(NamedTuple):
    """Data of a connection and a call that identify the caller."""

    certificate_names: tuple[str, ...]
    """Names of the certificate that TLS has checked: its common name, then its DNS names."""
    authorization: str
    """The header `authorization`; empty: there is none."""
    is_private: bool
    """The connection cannot be read by others: over TLS, or from this machine."""


class AccessRules:
    """An access list in the form that is checked at each call. Cost of a check: O(names), a
    microsecond, so that nothing is kept of a connection, whose address another one may have later.
    """

    def __init__(self, access: AccessList) -> None:
        self._by_certificate = {each.certificate: each for each in access.principal}
        self._by_digest = {each.token_sha256: each for each in access.principal}

    def admit(self, call: str, caller: Caller) -> Principal:
        """Returns the principal who makes a call. A token goes before a certificate.

        Raises NotAuthenticated or CallNotAllowed.
        """
        if caller.authorization:
            principal, problem = self._by_token(caller)
        elif caller.certificate_names:
            found = (self._by_certificate.get(name) for name in caller.certificate_names)
            principal = next(filter(None, found), None)
            problem = f"nobody has a certificate of {' or '.join(caller.certificate_names)}"
        else:
            principal, problem = None, "it shows neither a token nor a certificate"
        if principal is None:
            raise NotAuthenticated(call=call, problem=problem)
        roles = _ROLES.get(call, _UNKNOWN_CALL)
        if roles.isdisjoint(principal.roles):
            needed = " or ".join(sorted(roles))
            raise CallNotAllowed(principal=principal.name, call=call, roles=needed)
        return principal

    def _by_token(self, caller: Caller) -> tuple[Principal | None, str]:
        """Returns whose token it is, and what is wrong if it belongs to no principal.

        A token over a plain connection is no secret any more: a listener could use it, so it is
        refused even if it is right, and its user notices before others do.
        """
        if not caller.is_private:
            return None, "a token came without TLS, others may have read it: use TLS, renew it"
        if not caller.authorization[: len(_SCHEME)].lower() == _SCHEME:
            return None, "its authorization is no bearer token"
        token = caller.authorization[len(_SCHEME) :].strip()
        digest = hashlib.sha256(token.encode()).hexdigest()
        # The look-up reveals nothing of a token: its time is that of a hash of a hash.
        principal = self._by_digest.get(digest)
        if principal is None or not hmac.compare_digest(principal.token_sha256 or "", digest):
            return None, "nobody has its token"
        return principal, ""
