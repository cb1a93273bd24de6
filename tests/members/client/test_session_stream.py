"""A client's session stream without a member: what waits, and what becomes of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from groupcert.certifier.errors import GroupcertError, NotServing
from groupcert.members.client.session_stream import MESSAGE_BYTES, SessionStream
from groupcert.members.errors.transactions import MemberFailed
from groupcert.members.wire.channels import ADMITTED
from groupcert.v1.session_pb2 import SessionAnswer, SessionRequest, SessionResponse
from groupcert.v1.store_pb2 import CloseSnapshotResponse, GetRequest, GetResponse, Row
from tests.waiting import until


class Wire:
    """The gRPC call below a stream, answered by hand."""

    def __init__(self) -> None:
        self.admitted = asyncio.Event()
        self.sent: list[SessionRequest] = []
        self._answers: asyncio.Queue[SessionResponse | None] = asyncio.Queue()

    async def initial_metadata(self) -> Any:
        """Comes once the call is let in."""
        await self.admitted.wait()
        return ((ADMITTED, ""),)

    async def write(self, message: SessionRequest) -> None:
        """Takes a message."""
        self.sent.append(message)

    async def __aiter__(self) -> AsyncIterator[SessionResponse]:
        while (answers := await self._answers.get()) is not None:
            yield answers

    def answer(self, *answers: SessionAnswer) -> None:
        """Sends answers in one message."""
        self._answers.put_nowait(SessionResponse(answers=answers))

    async def done_writing(self) -> None:
        """Ends the call in order."""
        self._answers.put_nowait(None)

    def cancel(self) -> None:
        """Does nothing more."""

    def add_done_callback(self, callback: object) -> None:
        """Has no status to tell."""


def failure(error: grpc.RpcError) -> GroupcertError:
    raise AssertionError(error)


def get(size: int = 0) -> GetRequest:
    return GetRequest(keys=[bytes(size)])


def stream_on(wire: Wire) -> SessionStream:
    return SessionStream(wire, "m1", failure)  # type: ignore[arg-type]  # it has what is used


async def test_an_answer_of_an_unknown_kind_is_the_calls_alone() -> None:
    wire = Wire()
    stream = stream_on(wire)
    calls = [asyncio.create_task(stream.call("get", get(), 10)) for _ in range(2)]
    wire.admitted.set()
    await until(lambda: bool(wire.sent))
    strange = SessionAnswer.FromString(b"\x08\x01\xfa\x07\x01x")  # Number 1, and field 127.
    wire.answer(strange, SessionAnswer(number=2, get=GetResponse()))
    with pytest.raises(MemberFailed, match="of a kind that this release does not know"):
        await calls[0]
    assert await calls[1] == GetResponse()
    await stream.close()


async def test_what_waits_travels_in_one_message_and_is_answered_in_any_order() -> None:
    wire = Wire()
    stream = stream_on(wire)
    calls = [asyncio.create_task(stream.call("get", get(), 10)) for _ in range(3)]
    wire.admitted.set()
    await until(lambda: bool(wire.sent))
    assert [[each.number for each in message.calls] for message in wire.sent] == [[1, 2, 3]]
    rows = GetResponse(rows=[Row(key=b"k")])
    wire.answer(SessionAnswer(number=3, get=GetResponse()), SessionAnswer(number=1, get=rows))
    wire.answer(SessionAnswer(number=99, get=rows), SessionAnswer(number=2, get=GetResponse()))
    assert await asyncio.gather(*calls) == [rows, GetResponse(), GetResponse()]
    await stream.close()


async def test_a_message_is_full_at_its_bytes() -> None:
    wire = Wire()
    stream = stream_on(wire)
    calls = [asyncio.create_task(stream.call("get", get(100_000), 10)) for _ in range(5)]
    wire.admitted.set()
    await until(lambda: len(wire.sent) == 3)
    assert [len(message.calls) for message in wire.sent] == [2, 2, 1]
    assert all(message.ByteSize() <= MESSAGE_BYTES for message in wire.sent)
    await stream.close()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in ended} == {NotServing}


async def test_a_call_whose_time_is_up_is_not_sent_later_and_is_cancelled_if_it_was() -> None:
    wire = Wire()
    stream = stream_on(wire)
    with pytest.raises(TimeoutError):
        await stream.call("get", get(), 0.01)
    wire.admitted.set()
    with pytest.raises(TimeoutError):
        await stream.call("get", get(), 0.05)
    await until(lambda: bool(wire.sent and wire.sent[-1].cancelled))
    assert [each.number for message in wire.sent for each in message.calls] == [2]
    assert [number for message in wire.sent for number in message.cancelled] == [2]
    wire.answer(SessionAnswer(number=2, close_snapshot=CloseSnapshotResponse()))
    await stream.close()


async def test_after_its_end_a_stream_takes_no_call() -> None:
    wire = Wire()
    stream = stream_on(wire)
    wire.admitted.set()
    waiting = asyncio.create_task(stream.call("get", get(), 10))
    await asyncio.sleep(0)
    await wire.done_writing()
    for _ in range(2):
        with pytest.raises(NotServing, match="the session has ended"):
            await waiting
        waiting = asyncio.create_task(stream.call("get", get(), 10))
    with pytest.raises(NotServing):
        await waiting
