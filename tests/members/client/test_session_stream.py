"""A client's session stream without a member: what waits, and what becomes of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

import grpc
import pytest

from groupcert.certifier.errors import GroupcertError, NotServing
from groupcert.members.client.session_stream import (
    MESSAGE_BYTES,
    Connect,
    Connection,
    SessionStream,
)
from groupcert.members.door.frame_door import FrameDoor
from groupcert.members.errors.transactions import MemberFailed
from groupcert.members.host.loopback import HOST
from groupcert.members.wire.channels import ADMITTED
from groupcert.members.wire.frames import SIGN_BYTES, Frames
from groupcert.v1.session_pb2 import (
    SessionAnswer,
    SessionFrames,
    SessionRequest,
    SessionResponse,
)
from groupcert.v1.store_pb2 import CloseSnapshotResponse, GetRequest, GetResponse, Row
from tests.waiting import until

STOPPING = grpc.RpcError()


class Wire:
    """The gRPC call below a stream, answered by hand."""

    def __init__(self) -> None:
        self.admitted = asyncio.Event()
        self.sent: list[SessionRequest] = []
        self._answers: asyncio.Queue[SessionResponse | grpc.RpcError | None] = asyncio.Queue()

    async def initial_metadata(self) -> Any:
        """Comes once the call is let in."""
        await self.admitted.wait()
        return ((ADMITTED, ""),)

    async def write(self, message: SessionRequest) -> None:
        """Takes a message."""
        self.sent.append(message)

    async def __aiter__(self) -> AsyncIterator[SessionResponse]:
        while (answers := await self._answers.get()) is not None:
            if isinstance(answers, grpc.RpcError):
                raise answers
            yield answers

    def answer(self, *answers: SessionAnswer) -> None:
        """Sends answers in one message."""
        self._answers.put_nowait(SessionResponse(answers=answers))

    def tell(self, told: SessionFrames) -> None:
        """Tells where frames are taken."""
        self._answers.put_nowait(SessionResponse(frames=told))

    def fail(self, error: grpc.RpcError) -> None:
        """Ends the call with an error."""
        self._answers.put_nowait(error)

    async def done_writing(self) -> None:
        """Ends the call in order."""
        self._answers.put_nowait(None)

    def cancel(self) -> None:
        """Ends the call."""
        self._answers.put_nowait(None)

    def add_done_callback(self, callback: object) -> None:
        """Has no status to tell."""


def failure(error: grpc.RpcError) -> GroupcertError:
    assert error is STOPPING
    return NotServing(member="m1", state="STOPPING", ordered="nothing")


def get(size: int = 0) -> GetRequest:
    return GetRequest(keys=[bytes(size)])


def stream_on(wire: Wire, connect: Connect | None = None) -> SessionStream:
    return SessionStream(wire, "m1", failure, connect)  # type: ignore[arg-type]  # has what is used


async def connect(port: int) -> Connection:
    return await asyncio.open_connection(HOST, port)


class Framed:
    """A stream whose messages go by frames, at a real door."""

    def __init__(self) -> None:
        self.wire, self.door = Wire(), FrameDoor()
        self.attached: list[Frames] = []

    async def __aenter__(self) -> Self:
        await self.door.listen(HOST, 0, None)
        self.stream = stream_on(self.wire, connect)
        self.wire.admitted.set()
        first = asyncio.create_task(self.stream.call("get", get(), 10))
        await until(lambda: self.wire.sent)
        assert self.wire.sent[0].asks_frames
        self.wire.tell(self.door.expect(self.attached.append))
        self.wire.answer(SessionAnswer(number=1, get=GetResponse()))
        assert await first == GetResponse()
        await until(lambda: self.attached)
        self.frames = self.attached[0]
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stream.close()
        self.frames.abort()
        self.door.close()

    async def asked(self) -> tuple[int, "asyncio.Task[Any]"]:
        """Makes a call, and returns its number, as the member got it, and its task."""
        call = asyncio.create_task(self.stream.call("get", get(), 10))
        message = await self.frames.read()
        assert message is not None
        return SessionRequest.FromString(message).calls[0].number, call

    def answer(self, number: int) -> None:
        """Answers a call."""
        answer = SessionAnswer(number=number, get=GetResponse())
        self.frames.write(SessionResponse(answers=[answer]).SerializeToString())


async def test_messages_go_by_frames_once_they_are_connected() -> None:
    async with Framed() as framed:
        for _ in range(3):
            number, call = await framed.asked()
            framed.answer(number)
            assert await call == GetResponse()
        assert len(framed.wire.sent) == 1


@pytest.mark.parametrize("is_told", [True, False])
async def test_an_end_in_order_is_said_by_frames(is_told: bool) -> None:
    async with Framed() as framed:
        number, answered = await framed.asked()
        _, unanswered = await framed.asked()
        framed.wire.fail(STOPPING)
        await asyncio.sleep(0.05)
        framed.answer(number)
        assert await answered == GetResponse()
        if is_told:
            framed.frames.write(b"")
        else:
            framed.frames.abort()
        with pytest.raises(NotServing) as caught:
            await unanswered
        assert caught.value.ordered == ("nothing" if is_told else "perhaps")


async def test_a_stream_ends_with_its_frames() -> None:
    async with Framed() as framed:
        _, call = await framed.asked()
        framed.frames.abort()
        with pytest.raises(NotServing) as caught:
            await call
        assert caught.value.ordered == "perhaps"


async def refuse(frames: Frames, port: int) -> None:
    raise ConnectionRefusedError


@pytest.mark.parametrize("connect", [refuse, connect])
async def test_where_frames_cannot_be_used_messages_go_by_grpc(connect: Connect) -> None:
    wire, door = Wire(), FrameDoor()
    await door.listen(HOST, 0, None)
    told = door.expect(lambda _: pytest.fail("it was let in"))
    told.greeting = bytes(SIGN_BYTES)
    stream = stream_on(wire, connect)
    wire.admitted.set()
    for number in (1, 2, 3):
        call = asyncio.create_task(stream.call("get", get(), 10))
        await until(lambda: len(wire.sent) == number)  # noqa: B023
        if number == 1:
            wire.tell(told)
        wire.answer(SessionAnswer(number=number, get=GetResponse()))
        assert await call == GetResponse()
        await asyncio.sleep(0.02)
    assert [each.asks_frames for each in wire.sent] == [True, False, False]
    await stream.close()
    door.close()


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
