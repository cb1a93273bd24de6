"""A member's gRPC server and clients that do not behave."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1._async import HealthServicer

from certifier.errors import UploadExpired
from groupcert.v1 import store_pb2, store_pb2_grpc
from members import serve
from members.copies import Copies
from members.loopback import HOST, free_port
from members.runtime import MemberRuntime
from members.service import CurrentRuntime
from members.status import error_from
from tests.integration.waiting import wait_for
from tests.members.test_copies import running

HEADER = store_pb2.CommitStreamRequest(
    header=store_pb2.CommitHeader(
        commit=store_pb2.CommitRequest(transaction_id=b"1"), changes_bytes=1_000
    )
)
STALLING_CLIENT = f"""
import sys, time
import grpc
from groupcert.v1 import store_pb2, store_pb2_grpc

def requests():
    yield store_pb2.CommitStreamRequest.FromString({HEADER.SerializeToString()!r})
    time.sleep(600)

stub = store_pb2_grpc.StoreServiceStub(grpc.insecure_channel(sys.argv[1]))
for answer in stub.CommitStream(requests()):
    print(answer.WhichOneof("answer"), flush=True)
"""


@asynccontextmanager
async def serving(folder: Path, **settings: int) -> AsyncIterator[tuple[MemberRuntime, str]]:
    """A member that is ONLINE, and where it answers."""
    async with running(folder / "m1") as runtime:
        address = f"{HOST}:{free_port()}"
        config = runtime.config.model_copy(update={"address": address, **settings})
        runtime.config = config
        current = CurrentRuntime()
        current.runtime = runtime
        copies = Copies(folder / "copies")
        server = await serve._start_server(config, current, copies, HealthServicer())
        try:
            yield runtime, address
        finally:
            await server.stop(None)


async def stalling(
    *requests: store_pb2.CommitStreamRequest,
) -> AsyncIterator[store_pb2.CommitStreamRequest]:
    """Some requests, and nothing more."""
    for request in requests:
        yield request
    await asyncio.sleep(600)


async def test_an_upload_without_its_next_part_ends(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, snapshot_lease_ms=200) as (runtime, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        for requests in ([], [HEADER]):
            call = store_pb2_grpc.StoreServiceStub(channel).CommitStream(stalling(*requests))
            for _ in requests:
                answer = await call.read()
                assert isinstance(answer, store_pb2.CommitStreamResponse)
                assert answer.HasField("admitted")
                assert runtime.uploads.count == 1
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            error = error_from(caught.value)
            assert isinstance(error, UploadExpired)
            assert str(error).startswith("no part of a large commit came for 200 ms")
            assert (runtime.uploads.count, runtime.uploads.bytes) == (0, 0)


@pytest.mark.slow
async def test_a_client_that_vanished_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "KEEPALIVE_MS", 500)
    monkeypatch.setattr(serve, "KEEPALIVE_TIMEOUT_MS", 500)
    async with serving(tmp_path, snapshot_lease_ms=600_000) as (runtime, address):
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", STALLING_CLIENT, address), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert client.stdout is not None
            assert await client.stdout.readline() == b"admitted\n"
            await asyncio.sleep(2)
            assert runtime.uploads.count == 1, "it answers"
            os.kill(client.pid, signal.SIGSTOP)
            await asyncio.to_thread(wait_for, "no upload", lambda: not runtime.uploads.count)
        finally:
            client.kill()
            await client.wait()
