"""Converts errors to gRPC statuses, and back: the one table that both sides of the wire share.

The rule it keeps: a status carries an ErrorInfo whose `reason` is the error's own and whose
metadata are its fields as text, so that the Python client raises again what the member raised; and
an ErrorDetail with reason and advice as enums, so that a client of any language can act without
knowing our errors. A conflict also carries the typed `groupcert.v1.Conflict`.

Source: gRPC's guide to status codes; AIP-193 for the details.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import NoReturn, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # has no types
from grpc_status import rpc_status as grpc_rpc_status

from groupcert.v1 import transaction_pb2
from groupcert.v1.error_pb2 import (
    RETRY_ADVICE_AFTER_OPERATOR,
    RETRY_ADVICE_BEGIN_AGAIN,
    RETRY_ADVICE_NEVER,
    RETRY_ADVICE_OTHER_MEMBER,
    RETRY_ADVICE_SAME_REQUEST,
    RETRY_ADVICE_UNSPECIFIED,
    ErrorDetail,
    Reason,
    RetryAdvice,
)

from ...applier import errors as applier_errors  # noqa: F401 - adds its own to the errors
from ...certifier import errors
from ...certifier.errors import GroupcertError
from ..errors import calls as call_errors
from ..errors import membership as membership_errors  # adds its own, too
from ..errors import postgresql_servers as postgresql_errors  # noqa: F401 - likewise
from ..errors import recovery as recovery_errors
from ..errors.permissions import CallNotAllowed, KeyReserved, NotAuthenticated, TlsRefused
from ..errors.transactions import (
    CertificationConflict,
    MemberFailed,
    OutcomeUnknown,
    TransactionFailed,
    TransactionRefused,
    TransactionTooOld,
)

DOMAIN = "groupcert"
DETAIL_CHARACTERS_MAX = 256
MESSAGE_CHARACTERS_MAX = 1_024
KEY_BYTES_MAX = 2_048
"""Longer texts are cut: a status travels in HTTP/2 headers, of which peers accept about 8 KB."""

FORGET_SECONDS = 0.01
"""Seconds after which a call that was ended has dropped its request."""

CODES: Mapping[type[GroupcertError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.DomainNotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    CallNotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    KeyReserved: grpc.StatusCode.PERMISSION_DENIED,
    NotAuthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DiskFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.LogFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    recovery_errors.CopyExpired: grpc.StatusCode.OUT_OF_RANGE,
    recovery_errors.TooManyCopies: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    membership_errors.ChangedMeanwhile: grpc.StatusCode.ABORTED,
    membership_errors.NotPrimary: grpc.StatusCode.FAILED_PRECONDITION,
    membership_errors.RowsNotKept: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SnapshotExpired: grpc.StatusCode.OUT_OF_RANGE,
    call_errors.ReadOnlyReplica: grpc.StatusCode.FAILED_PRECONDITION,
    call_errors.TooManyCalls: grpc.StatusCode.RESOURCE_EXHAUSTED,
    call_errors.TooManySnapshots: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Fenced: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CorruptLog: grpc.StatusCode.DATA_LOSS,
    CertificationConflict: grpc.StatusCode.ABORTED,
    TransactionTooOld: grpc.StatusCode.OUT_OF_RANGE,
    TransactionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    MemberFailed: grpc.StatusCode.UNKNOWN,
}
"""The status code of a class and those below it; the nearest class counts."""

ADVICE: Mapping[type[GroupcertError], RetryAdvice.ValueType] = {
    errors.InvalidRequest: RETRY_ADVICE_NEVER,
    errors.Unavailable: RETRY_ADVICE_SAME_REQUEST,
    errors.DiskFull: RETRY_ADVICE_OTHER_MEMBER,
    errors.LogFull: RETRY_ADVICE_BEGIN_AGAIN,  # Other members have the same log.
    errors.NotServing: RETRY_ADVICE_OTHER_MEMBER,
    errors.SnapshotExpired: RETRY_ADVICE_BEGIN_AGAIN,
    call_errors.SessionEnded: RETRY_ADVICE_BEGIN_AGAIN,
    call_errors.TooManySnapshots: RETRY_ADVICE_BEGIN_AGAIN,
    membership_errors.ChangedMeanwhile: RETRY_ADVICE_BEGIN_AGAIN,
    membership_errors.NotPrimary: RETRY_ADVICE_OTHER_MEMBER,
    membership_errors.OutOfGroup: RETRY_ADVICE_OTHER_MEMBER,
    membership_errors.ReleaseTooOld: RETRY_ADVICE_AFTER_OPERATOR,
    membership_errors.RowsNotKept: RETRY_ADVICE_OTHER_MEMBER,
    recovery_errors.CopyExpired: RETRY_ADVICE_BEGIN_AGAIN,
    recovery_errors.TooManyCopies: RETRY_ADVICE_OTHER_MEMBER,
    errors.Fenced: RETRY_ADVICE_AFTER_OPERATOR,
    errors.CorruptLog: RETRY_ADVICE_AFTER_OPERATOR,
    TransactionFailed: RETRY_ADVICE_BEGIN_AGAIN,
    TransactionRefused: RETRY_ADVICE_NEVER,
    OutcomeUnknown: RETRY_ADVICE_UNSPECIFIED,
    MemberFailed: RETRY_ADVICE_UNSPECIFIED,
}
"""What the caller does next, likewise; `error.proto` says what each advice asks of it."""
WITHOUT_EFFECT = (
    errors.InvalidRequest,
    errors.SnapshotExpired,
    errors.UploadExpired,
    CertificationConflict,
    TransactionTooOld,
    TransactionRefused,
    call_errors.RequestIncomplete,
    call_errors.TooManySnapshots,
    membership_errors.NotPrimary,
    membership_errors.RowsNotKept,
)
"""A member raises these of requests that have had no effect, and will have none."""

TLS_PROBLEMS: Mapping[str, str] = {
    "certificate has expired": "its certificate has expired",
    "certificate is not yet valid": "its certificate is not valid yet",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is of no authority that is trusted here",
    "Hostname Verification Check failed": "its certificate is for another host",
    "WRONG_VERSION_NUMBER": "it speaks without TLS",
    "TSI_PROTOCOL_FAILURE": "the handshake failed",
}
"""Texts of gRPC where this side refuses the connection, and what they mean; the first that is found
counts."""
TOO_MANY_CALLS = "Concurrent RPC limit exceeded"
"""Text of a gRPC server that has as many calls as it takes; it has not begun this one."""
NOT_CONNECTED = "failed to connect"
NO_GRPC = "Failed parsing HTTP/2"
NO_GRPC_THERE = (
    "what answers there speaks no gRPC: is it a console's or a log server's address, "
    "not a member's?"
)
HUNG_UP = ("Socket closed", "reset by peer", "Broken pipe")
HUNG_UP_ON_TLS = (
    "it hung up at once, as one does that takes no such certificate for TLS: "
    "is ours missing, expired, or of an authority that it does not trust?"
)
HUNG_UP_ON_PLAIN = (
    "it hung up at once, as one does that speaks TLS only: "
    "give authority, certificate and key for TLS"
)
"""Meaning of a refusal by the other side, which gives no reason to a caller that it does not
know."""
UNREACHABLE_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
ENDED_HERE = ("Locally cancelled", "Channel closed")
"""Text of gRPC for a call that its own caller has ended; other calls were ended by the member's
server."""
BROKEN = ("RST_STREAM", "Stream removed", "GOAWAY", "Internal error from Core", *HUNG_UP)
"""Texts of gRPC, under codes of its own, for a connection or a stream that ended during a call."""
DO_NOT_REPEAT = ("grpc-retry-pushback-ms", "-1")
"""Makes gRPC at the caller not repeat the call to the same member: it repeats only calls without an
answer."""


class AbortableContext(Protocol):
    """The part of a `grpc.aio.ServicerContext` that `abort` needs."""

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: tuple[tuple[str, str | bytes], ...] = (),
    ) -> NoReturn:
        """Ends the call with a status."""
        ...


def code_of(error: GroupcertError) -> grpc.StatusCode:
    """Returns the status code of an error: that of the nearest class in the table."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def advice_of(error: GroupcertError) -> RetryAdvice.ValueType:
    """Returns the advice for the caller of a failed call: of the nearest class in the table."""
    return next(ADVICE[kind] for kind in type(error).__mro__ if kind in ADVICE)


def is_without_effect(error: GroupcertError) -> bool:
    """Returns whether the request that failed has had no effect and will have none, since a member,
    or gRPC for it, refused it, was too full for it, or gave it up before it was whole.
    """
    is_exhausted = code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    is_turned_away = isinstance(error, errors.NotServing) and error.ordered == "nothing"
    return is_exhausted or is_turned_away or isinstance(error, WITHOUT_EFFECT)


def rpc_status(error: GroupcertError) -> status_pb2.Status:
    """Returns an error as a `google.rpc.Status`; a conflict whole, but for a key that is too long.

    ABORTED: another transaction committed first, the whole transaction may be run again.
    OUT_OF_RANGE: the snapshot is older than what certification still knows. FAILED_PRECONDITION:
    the transaction cannot commit as it stands.
    """
    if not isinstance(error, CertificationConflict):
        return _status(error, str(error), _texts(error))
    detail = transaction_pb2.Conflict(**vars(error))
    detail.key = _cut(error.key)
    if len(error.key_bytes) > KEY_BYTES_MAX:
        detail.key_bytes = b""
    metadata = {name: getattr(detail, name) for name in ("key", "winner_gtid", "winner_member")}
    return _status(error, str(_conflict(detail)), metadata, detail)


def commit_error(outcome: transaction_pb2.Outcome) -> TransactionFailed:
    """Returns the error that the client of a commit gets for a negative verdict."""
    assert outcome.verdict != transaction_pb2.VERDICT_CERTIFIED, "a commit is not an error"
    if outcome.verdict == transaction_pb2.VERDICT_CONFLICT:
        return _conflict(outcome.conflict)
    is_too_old = outcome.verdict == transaction_pb2.VERDICT_TOO_OLD
    kind = TransactionTooOld if is_too_old else TransactionRefused
    return kind(explanation=outcome.reason)


async def abort(context: AbortableContext, error: GroupcertError) -> NoReturn:
    """Ends a call of a `grpc.aio` server with an error.

    gRPC keeps the error it raises in the call, whose frames are in the error's traceback: a cycle
    with the request in it, which stays until Python's garbage collector runs, in a quiet member for
    ever. So the frames are removed.
    """
    ready = grpc_rpc_status.to_status(rpc_status(error))
    try:
        await context.abort(ready.code, ready.details, (*ready.trailing_metadata, DO_NOT_REPEAT))
    except grpc.aio.AbortError as aborted:
        asyncio.get_running_loop().call_later(FORGET_SECONDS, _forget_frames, aborted)
        raise


def _forget_frames(aborted: grpc.aio.AbortError) -> None:
    """Removes the traceback of the error that gRPC has raised, and of the one before it."""
    aborted.__traceback__ = aborted.__context__ = None


def error_from(
    rpc_error: grpc.RpcError, address: str = "member", *, has_tls: bool = False
) -> GroupcertError:
    """Returns the error that a failed call means to its caller: the inverse of the functions above.

    Args:
        has_tls: The call went over TLS, or would have.

    Returns: the error that the member raised, or a failure of the transaction; `NotServing` if the
        member at `address` does not answer, `TlsRefused` if that is for TLS; else `MemberFailed`.
    """
    known = _error_in(_status_of(rpc_error))
    if known is not None:
        return known
    code, explanation = rpc_error.code(), rpc_error.details() or ""
    if TOO_MANY_CALLS in explanation:
        state = "OVERLOADED (it has as many calls as it takes at a time)"
        return errors.NotServing(member=address, state=state, ordered="nothing")
    if code in UNREACHABLE_CODES or _is_cut_off(code, explanation):
        problem = next((text for part, text in TLS_PROBLEMS.items() if part in explanation), None)
        if problem is not None:
            return TlsRefused(address=address, problem=problem)
        if NO_GRPC in explanation:
            explanation = NO_GRPC_THERE
        if NOT_CONNECTED in explanation and any(part in explanation for part in HUNG_UP):
            explanation = HUNG_UP_ON_TLS if has_tls else HUNG_UP_ON_PLAIN
        return errors.NotServing(member=address, state=f"UNREACHABLE ({explanation})")
    return MemberFailed(address=address, code=code.name, explanation=explanation)


def _is_cut_off(code: grpc.StatusCode, explanation: str) -> bool:
    """Returns whether a call ended with its connection or its server, not by its caller."""
    if code is grpc.StatusCode.CANCELLED:
        return not any(part in explanation for part in ENDED_HERE)
    is_grpcs_own = code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    return is_grpcs_own and any(part in explanation for part in BROKEN)


def _status(
    error: GroupcertError, message: str, metadata: Mapping[str, str], *more: Message
) -> status_pb2.Status:
    metadata = {name: _cut(text) for name, text in metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    number, _ = code_of(error).value
    status = status_pb2.Status(code=number, message=_cut(message, MESSAGE_CHARACTERS_MAX))
    for detail in (info, _error_detail(error), *more):
        status.details.add().Pack(detail)
    return status


def _error_detail(error: GroupcertError) -> ErrorDetail:
    address = error.address if isinstance(error, membership_errors.NotPrimary) else ""
    return ErrorDetail(
        reason=Reason.Value(f"REASON_{error.reason}"),
        advice=advice_of(error),
        without_effect=is_without_effect(error),
        address=_cut(address),
    )


def _texts(error: GroupcertError) -> dict[str, str]:
    """Returns an error's fields as text: bytes in hexadecimal digits."""
    values = vars(error).items()
    return {name: value.hex() if isinstance(value, bytes) else str(value) for name, value in values}


def _cut(text: str, characters_max: int = DETAIL_CHARACTERS_MAX) -> str:
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def carried_error(serialized: bytes, address: str) -> GroupcertError:
    """Returns the error that a serialized status in an answer of a session stream stands for."""
    status = status_pb2.Status.FromString(serialized)
    known = _error_in(status)
    if known is not None:
        return known
    code = next((each.name for each in grpc.StatusCode if each.value[0] == status.code), "UNKNOWN")
    return MemberFailed(address=address, code=code, explanation=status.message)


def _status_of(rpc_error: grpc.RpcError) -> status_pb2.Status:
    """Returns the status of a failed call; an empty one if it cannot be read."""
    try:
        status = grpc_rpc_status.from_call(rpc_error)  # type: ignore[arg-type]  # it is a Call, too
    except (AttributeError, DecodeError, ValueError):
        return status_pb2.Status()
    return status or status_pb2.Status()


def _error_in(status: status_pb2.Status) -> GroupcertError | None:
    """Returns the error of this project that the details of a status describe, if they do."""
    info, conflict = error_details_pb2.ErrorInfo(), transaction_pb2.Conflict()
    if any(detail.Unpack(conflict) for detail in status.details):
        return _conflict(conflict)
    if any(detail.Unpack(info) for detail in status.details) and info.domain == DOMAIN:
        return _known(info.reason, info.metadata)
    return None


def _conflict(message: transaction_pb2.Conflict) -> CertificationConflict:
    return CertificationConflict(
        **{field.name: getattr(message, field.name) for field in fields(CertificationConflict)}
    )


def _known(reason: str, metadata: Mapping[str, str]) -> GroupcertError | None:
    """Returns the error of a reason, or None if this release lacks it or one of its fields."""
    kind = kinds().get(reason)
    if kind is None:
        return None
    try:
        return kind(
            **{
                field.name: _value(field.type, metadata[field.name])
                for field in fields(kind)
                # A member of an earlier release leaves out what has a default.
                if field.name in metadata or field.default is MISSING
            }
        )
    except (KeyError, ValueError):
        return None


def _value(kind: object, text: str) -> object:
    if kind is bytes:
        return bytes.fromhex(text)
    return int(text) if kind is int else text


def leaves(root: type[GroupcertError] = GroupcertError) -> Iterator[type[GroupcertError]]:
    """Yields the classes that are raised; importing a module of errors adds its own to the tree."""
    for child in root.__subclasses__():
        if child.__subclasses__():
            yield from leaves(child)
        else:
            yield child


_NOT_BY_NAME = {CertificationConflict, MemberFailed}
"""Errors that no status carries: a conflict has a message of its own; the other one only a client
raises."""


def kinds() -> dict[str, type[GroupcertError]]:
    """Returns the errors that are built again from their reason and fields. It is no constant:
    a module of errors that is imported later adds to the tree.
    """
    return {kind.reason: kind for kind in leaves() if kind not in _NOT_BY_NAME}
