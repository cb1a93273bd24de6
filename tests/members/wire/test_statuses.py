"""Errors survive the wire: what a real server aborts with is what the client raises again."""

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # has no types
from grpc_status import rpc_status

from groupcert import (
    CertificationConflict,
    MemberFailed,
    TransactionFailed,
    TransactionRefused,
    TransactionTooOld,
)
from groupcert.certifier import errors
from groupcert.certifier.errors import GroupcertError
from groupcert.members.errors import calls as call_errors
from groupcert.members.errors.membership import NotPrimary
from groupcert.members.wire import statuses as status
from groupcert.v1 import transaction_pb2
from groupcert.v1.error_pb2 import ErrorDetail, Reason, RetryAdvice

CONFLICT = transaction_pb2.Conflict(
    item=7,
    key="\\xff\x00",
    key_bytes=b"\xff\x00",
    winner_gtid="3e11fa47-71ca-11e1-9e33-c80aa9429562:4",
    winner_member="m2",
    winner_version=4,
    winner_log_sequence=9,
    snapshot_version=3,
    log_sequence=12,
)


LOCAL = (
    "groupcert.applier.mysql_logs.row_errors",
    "groupcert.applier.mysql_servers.source_errors",
    "groupcert.certifier.audit",
    "groupcert.members.errors.rebuild",
    "groupcert.members.errors.usage",
    "groupcert.members.commands.extras",
    "groupcert.members.host.servers",
)
"""Their errors cross no wire; whether they are in the tree depends on what was imported before."""
LEAVES = tuple(each for each in status.leaves() if not each.__module__.startswith(LOCAL))
FIELD_EXAMPLES: dict[object, object] = {
    int: 7,
    str: "text",
    bytes: b"\xff\x00",
    tuple[str, ...]: ("m1", "m2"),
}


def example(kind: type[GroupcertError]) -> GroupcertError:
    """Returns an error of a class, each of whose fields has a value."""
    assert is_dataclass(kind)
    named = {field.name: FIELD_EXAMPLES.get(field.type, "value") for field in fields(kind)}
    return kind(**named)


@contextmanager
def failing_server(failure: GroupcertError | status_pb2.Status) -> Iterator[str]:
    """Yields the address of a server that answers each call with one failure."""

    async def handler(_request: bytes, context: Any) -> bytes:
        await status.abort(context, failure)

    async def serve(started: "asyncio.Future[str]", stopped: asyncio.Event) -> None:
        server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(handler)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("s", {"m": method})])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        started.set_result(f"127.0.0.1:{port}")
        await stopped.wait()
        await server.stop(None)

    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()
    with ThreadPoolExecutor(1) as thread:
        started: asyncio.Future[str] = loop.create_future()
        serving = thread.submit(loop.run_until_complete, serve(started, stopped))
        try:
            yield asyncio.run_coroutine_threadsafe(_result(started), loop).result(10)
        finally:
            loop.call_soon_threadsafe(stopped.set)
            serving.result(10)
    loop.close()


def call(channel: grpc.Channel) -> bytes:
    """Calls the one method of a failing server."""
    method = channel.unary_unary("/s/m", request_serializer=bytes, response_deserializer=bytes)
    response: bytes = method(b"", timeout=10)
    return response


async def _result(future: "asyncio.Future[str]") -> str:
    return await future


def received(failure: GroupcertError | status_pb2.Status) -> tuple[grpc.StatusCode, Exception]:
    """Returns the code of a failure that has crossed the wire, and what a client makes of it."""
    with failing_server(failure) as address, grpc.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            call(channel)
        return caught.value.code(), status.error_from(caught.value, address)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.reason)
def test_every_error_has_a_code_of_its_own_category(kind: type[GroupcertError]) -> None:
    nearest = next(base for base in kind.__mro__ if base in status.CODES)
    category = next(base for base in kind.__mro__ if base.__bases__ == (GroupcertError,))
    assert issubclass(nearest, category)
    assert category in status.CODES


@pytest.mark.parametrize("table", [status.CODES, status.ADVICE], ids=["codes", "advice"])
def test_every_row_of_a_table_is_used(table: Mapping[type[GroupcertError], object]) -> None:
    assert {next(base for base in kind.__mro__ if base in table) for kind in LEAVES} == set(table)


def test_every_reason_is_a_number_of_the_contract() -> None:
    reasons = [each.reason for each in LEAVES]
    assert len(reasons) > 60
    assert {f"REASON_{reason}" for reason in (*reasons, "UNSPECIFIED")} == set(Reason.keys())


@pytest.mark.parametrize(
    "kind",
    [each for each in LEAVES if each in status.kinds().values()],
    ids=lambda kind: kind.reason,
)
def test_an_error_is_built_again_from_its_status(kind: type[GroupcertError]) -> None:
    error = example(kind)
    message = status.rpc_status(error)
    again = status.error_from(_Failed(message))
    assert type(again) is kind
    assert vars(again) == vars(error)


def test_a_full_disk_and_an_expired_snapshot_have_codes_of_their_own() -> None:
    full, expired = example(errors.DiskFull), example(errors.SnapshotExpired)
    assert status.code_of(full) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status.code_of(expired) is grpc.StatusCode.OUT_OF_RANGE


def test_a_domain_that_is_not_allowed_is_a_matter_of_permission() -> None:
    assert status.code_of(example(errors.DomainNotAllowed)) is grpc.StatusCode.PERMISSION_DENIED


def test_an_error_crosses_the_wire_with_its_fields() -> None:
    code, error = received(errors.TransactionTooLarge(bytes=11, bytes_max=10))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, errors.TransactionTooLarge)
    assert (error.bytes, error.bytes_max) == (11, 10)


def conflict_error(conflict: transaction_pb2.Conflict) -> TransactionFailed:
    """Returns the error of a commit that lost."""
    verdict = transaction_pb2.VERDICT_CONFLICT
    return status.commit_error(transaction_pb2.Outcome(verdict=verdict, conflict=conflict))


def test_a_conflict_crosses_the_wire_with_all_it_knows() -> None:
    code, error = received(conflict_error(CONFLICT))
    assert code is grpc.StatusCode.ABORTED
    assert isinstance(error, CertificationConflict)
    assert vars(error) == {name.name: value for name, value in CONFLICT.ListFields()}
    assert error.key_bytes == b"\xff\x00"
    assert repr("\\xff\x00") in str(error)
    assert "run it again" in str(error)


def detail_of(error: GroupcertError) -> ErrorDetail:
    """Returns what a client of any language reads of an error."""
    detail = ErrorDetail()
    (found,) = (each for each in status.rpc_status(error).details if each.Is(detail.DESCRIPTOR))
    found.Unpack(detail)
    return detail


@pytest.mark.parametrize(
    ("error", "advice", "without_effect"),
    [
        (errors.TooManyKeys(keys=2, keys_max=1), "NEVER", True),
        (TransactionRefused(explanation="because"), "NEVER", True),
        (conflict_error(CONFLICT), "BEGIN_AGAIN", True),
        (errors.SnapshotExpired(snapshot_id=1, lease_ms=1), "BEGIN_AGAIN", True),
        (call_errors.SessionEnded(session_id=1), "BEGIN_AGAIN", False),
        (errors.Overloaded(waiting=2, waiting_max=1), "SAME_REQUEST", True),
        (errors.LogServerUnavailable(address="a:1", cause="none"), "SAME_REQUEST", False),
        (errors.NotServing(member="m1", state="LEFT"), "OTHER_MEMBER", False),
        (errors.NotServing(member="m1", state="LEFT", ordered="nothing"), "OTHER_MEMBER", True),
        (errors.CorruptStore(path="/data", problem="a hole"), "AFTER_OPERATOR", False),
    ],
    ids=lambda value: value.reason if isinstance(value, GroupcertError) else None,
)
def test_an_error_says_what_its_caller_does_next(
    error: GroupcertError, advice: str, without_effect: bool
) -> None:
    detail = detail_of(error)
    assert Reason.Name(detail.reason) == f"REASON_{error.reason}"
    assert RetryAdvice.Name(detail.advice) == f"RETRY_ADVICE_{advice}"
    assert detail.without_effect is without_effect
    assert detail.address == ""


def test_a_member_that_is_not_the_primary_says_who_is_to_be_asked() -> None:
    detail = detail_of(NotPrimary(member="m1", primary="m2", address="b:2"))
    assert (detail.advice, detail.address) == (RetryAdvice.RETRY_ADVICE_OTHER_MEMBER, "b:2")
    assert detail.without_effect


def test_a_conflict_on_an_unknown_row_names_its_item() -> None:
    conflict = transaction_pb2.Conflict(item=0xAB)
    assert "item 00000000000000ab" in str(conflict_error(conflict))


def test_a_huge_text_is_cut_so_that_the_status_fits_into_headers() -> None:
    huge = transaction_pb2.Conflict(key="k" * 100_000, key_bytes=b"k" * 100_000)
    assert status.rpc_status(conflict_error(huge)).ByteSize() < 4_000
    wide = errors.InvalidGtidSet(text="x" * 100_000, part="x" * 100_000, expected="a number")
    code, error = received(wide)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, errors.InvalidGtidSet)
    assert len(error.text) == status.DETAIL_CHARACTERS_MAX
    long_name = errors.InvalidSetting(name="n" * 100_000, value="", expected="a setting's name")
    assert len(status.rpc_status(long_name).message) == status.MESSAGE_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("verdict", "code", "kind"),
    [
        (transaction_pb2.VERDICT_CONFLICT, grpc.StatusCode.ABORTED, CertificationConflict),
        (transaction_pb2.VERDICT_TOO_OLD, grpc.StatusCode.OUT_OF_RANGE, TransactionTooOld),
        (transaction_pb2.VERDICT_REFUSED, grpc.StatusCode.FAILED_PRECONDITION, TransactionRefused),
    ],
)
def test_each_negative_verdict_has_its_status(
    verdict: transaction_pb2.Verdict.ValueType, code: grpc.StatusCode, kind: type[Exception]
) -> None:
    outcome = transaction_pb2.Outcome(verdict=verdict, reason="because", conflict=CONFLICT)
    message = status.rpc_status(status.commit_error(outcome))
    error = status.error_from(_Failed(message))
    assert message.code == code.value[0]
    assert type(error) is kind
    assert str(error) == message.message


def test_a_member_that_does_not_answer_is_not_serving() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            call(channel)
    error = status.error_from(caught.value, "127.0.0.1:1")
    assert isinstance(error, errors.NotServing)
    assert "127.0.0.1:1 is UNREACHABLE" in str(error)


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.CANCELLED, "RPC cancelled", errors.NotServing),
        (grpc.StatusCode.CANCELLED, "", errors.NotServing),
        (grpc.StatusCode.CANCELLED, "Channel closed!", MemberFailed),
        (grpc.StatusCode.CANCELLED, "Locally cancelled by application!", MemberFailed),
        (grpc.StatusCode.UNAVAILABLE, "GOAWAY received", errors.NotServing),
        (grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer", errors.NotServing),
        (grpc.StatusCode.UNKNOWN, "Stream removed", errors.NotServing),
        (grpc.StatusCode.UNKNOWN, "a bug", MemberFailed),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 0", errors.NotServing),
        (grpc.StatusCode.INTERNAL, "a bug", MemberFailed),
    ],
)
def test_a_call_that_ended_with_its_connection_may_be_made_elsewhere(
    code: grpc.StatusCode, details: str, kind: type[Exception]
) -> None:
    message = status_pb2.Status(code=code.value[0], message=details)
    error = status.error_from(_Failed(message), "a:1")
    assert type(error) is kind
    if isinstance(error, errors.NotServing):
        assert error.ordered == "perhaps"


def test_a_field_that_an_older_release_does_not_send_has_its_default() -> None:
    message = status.rpc_status(errors.NotServing(member="m1", state="LEFT", ordered="nothing"))
    info = error_details_pb2.ErrorInfo()
    message.details[0].Unpack(info)
    del info.metadata["ordered"]
    message.details[0].Pack(info)
    error = status.error_from(_Failed(message), "a:1")
    assert isinstance(error, errors.NotServing)
    assert (error.member, error.ordered) == ("m1", "perhaps")


def test_an_error_of_another_release_keeps_its_code_and_words() -> None:
    message = status.rpc_status(errors.NotServing(member="m1", state="RECOVERING"))
    message.code = grpc.StatusCode.INTERNAL.value[0]
    del message.details[:]
    error = status.error_from(_Failed(message), "a:1")
    assert isinstance(error, MemberFailed)
    assert str(error).startswith("member at a:1 failed with INTERNAL: member m1 is RECOVERING")


class _Failed(grpc.RpcError):
    """A failed call as `grpc` hands it to a client."""

    def __init__(self, message: status_pb2.Status) -> None:
        self._status = rpc_status.to_status(message)

    def code(self) -> grpc.StatusCode:
        return self._status.code

    def details(self) -> str:
        return self._status.details

    def trailing_metadata(self) -> tuple[Any, ...]:
        return tuple(self._status.trailing_metadata)
