"""Answers that nobody takes, at a real server: their calls are ended, and nothing stays of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from groupcert.members.door.answer_budget import AnswerBudget, answering
from groupcert.members.door.call_limit import Rooms
from groupcert.members.door.call_times import CallTimes
from groupcert.members.door.callers import Callers
from groupcert.members.door.door import Deliveries, Door, waits_for_end
from groupcert.members.errors.calls import AnswerNotTaken
from groupcert.members.host.loopback import HOST, free_port
from groupcert.v1 import recovery_pb2, recovery_pb2_grpc
from tests.raw_calls import RawCalls
from tests.waiting import until

TAKING_MS = 400
CHUNK = bytes(1 << 20)
CHUNKS = 64
"""More than a client of gRPC takes before it is asked for them."""
OPEN_COPY = "/groupcert.v1.RecoveryService/OpenCopy"
READ_COPY = "/groupcert.v1.RecoveryService/ReadCopy"


class Donor(recovery_pb2_grpc.RecoveryServiceServicer):
    """Answers with large messages, and counts what it has read for them."""

    def __init__(self, answers: AnswerBudget) -> None:
        self.read = 0
        self.unsent_bytes_max = 0
        self._answers = answers

    async def OpenCopy(self, request: Any, context: Any) -> recovery_pb2.OpenCopyResponse:
        """Returns one."""
        await self._room()
        return recovery_pb2.OpenCopyResponse(manifest=CHUNK)

    async def _room(self) -> None:
        await answering().room()
        self.read += 1
        self.unsent_bytes_max = max(self.unsent_bytes_max, self._answers.bytes)

    async def CloseCopy(self, request: Any, context: Any) -> recovery_pb2.CloseCopyResponse:
        """Returns a small one."""
        return recovery_pb2.CloseCopyResponse()

    async def ReadCopy(
        self, request: Any, context: Any
    ) -> AsyncIterator[recovery_pb2.ReadCopyResponse]:
        """Yields some."""
        for _ in range(CHUNKS):
            await self._room()
            yield recovery_pb2.ReadCopyResponse(data=CHUNK)


class Served:
    """A server behind the door."""

    def __init__(self, time_ms: int) -> None:
        self.address = f"{HOST}:{free_port()}"
        self.rooms, self.answers = Rooms(), AnswerBudget(4 << 20)
        self.donor, self.times = Donor(self.answers), CallTimes()
        door = Door(Callers(None, has_tls=False), self.rooms, self.times, self.answers, time_ms)
        self.server = grpc.aio.server(interceptors=(door,))
        recovery_pb2_grpc.add_RecoveryServiceServicer_to_server(self.donor, self.server)
        self.server.add_insecure_port(self.address)


@asynccontextmanager
async def served(time_ms: int = TAKING_MS) -> AsyncIterator[Served]:
    """Serves for as long as the block lasts."""
    made = Served(time_ms)
    await made.server.start()
    try:
        yield made
    finally:
        await made.server.stop(None)


def calls_open() -> int:
    """The calls that gRPC has not ended."""
    return sum(waits_for_end(each) is not None for each in asyncio.all_tasks())


@pytest.mark.parametrize("call", [OPEN_COPY, READ_COPY])
@pytest.mark.parametrize("window", [0, None])
async def test_a_call_whose_answer_nobody_takes_is_ended(call: str, window: int | None) -> None:
    async with served() as made, grpc.aio.insecure_channel(made.address) as channel:
        stub = recovery_pb2_grpc.RecoveryServiceStub(channel)
        calls = await asyncio.to_thread(RawCalls, made.address, window)
        try:
            for _ in range(5):
                await asyncio.to_thread(calls.ask, call, b"")
            while len(calls.ended) < 5:  # gRPC's loop keeps a call until the next one.
                await stub.CloseCopy(recovery_pb2.CloseCopyRequest())
            await until(lambda: calls_open() == 0)
        finally:
            await asyncio.to_thread(calls.__exit__)
    assert (made.donor.read, made.answers.bytes) == (5, 0)
    assert made.donor.unsent_bytes_max < 3 << 20
    assert made.rooms.of(call, is_stream=False).taken == 0
    assert made.times.refusals == {"ANSWER_NOT_TAKEN": 5}


async def test_who_takes_its_answers_gets_them_all() -> None:
    async with served() as made, grpc.aio.insecure_channel(made.address) as channel:
        stub = recovery_pb2_grpc.RecoveryServiceStub(channel)
        opened = await stub.OpenCopy(recovery_pb2.OpenCopyRequest())
        assert opened.manifest == CHUNK
        read = [each.data async for each in stub.ReadCopy(recovery_pb2.ReadCopyRequest())]
        assert read == [CHUNK] * CHUNKS
        await until(lambda: made.answers.bytes == 0)
    assert not made.times.refusals


async def test_a_reader_that_stops_reads_what_came_and_then_that_its_call_was_ended() -> None:
    async with served() as made, grpc.aio.insecure_channel(made.address) as channel:
        stub = recovery_pb2_grpc.RecoveryServiceStub(channel)
        reading = stub.ReadCopy(recovery_pb2.ReadCopyRequest())
        assert (await anext(aiter(reading))).data == CHUNK
        await until(lambda: made.times.refusals.total() == 1)
        await stub.CloseCopy(recovery_pb2.CloseCopyRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in reading:
                pass
        assert caught.value.code() is grpc.StatusCode.CANCELLED
        assert made.donor.read < CHUNKS


async def test_a_large_answer_has_more_time() -> None:
    late: list[AnswerNotTaken] = []
    deliveries = Deliveries(lambda _caller, error: late.append(error), 200)
    small, large = (asyncio.create_task(asyncio.sleep(600)) for _ in range(2))
    deliveries.begin(large, "/s/Large", "one", 2_000 << 20)
    deliveries.begin(small, "/s/Small", "one", 1)
    await until(lambda: len(late) == 1)
    assert (late[0].call, late[0].time_ms) == ("/s/Small", 200)
    deliveries.end(large)
    deliveries.end(small)
    small.cancel()
    large.cancel()
