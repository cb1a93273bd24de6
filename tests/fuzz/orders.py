"""The orders that a fuzzed group runs on, and how a stranger writes to the group's log there.

A stranger writes as whoever may connect does, by no code of the members: a plain publish to the
stream's subject, a plain put of the log's key.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import grpc.aio
import nats
from nats.aio.msg import Msg

from groupcert.etcd.rpc_pb2 import (
    PutRequest,
    PutResponse,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from groupcert.members.host.loopback import HOST
from groupcert.members.total_order.embedded_server import LogServer
from tests.log_servers import EtcdServers

GROUP = "local"
SUBJECT = f"groupcert.{GROUP}.log"
KEY = f"groupcert/{GROUP}/log".encode()
Take = Callable[[bytes], None]
Publish = Callable[[bytes], Awaitable[object]]


class FuzzedOrder(NamedTuple):
    """A running order."""

    settings: Mapping[str, object]
    """Of members on it."""
    stranger: Callable[[Take], AbstractAsyncContextManager[Publish]]
    """Connects: hands on each new message of the log, and publishes."""


@contextmanager
def nats_order(folder: Path) -> Iterator[FuzzedOrder]:
    """Runs one server of NATS JetStream."""
    server = LogServer(folder)
    server.start()
    try:

        @asynccontextmanager
        async def stranger(take: Take) -> AsyncIterator[Publish]:
            async def receive(message: Msg) -> None:
                take(message.data)

            client = await nats.connect(server.address)
            try:
                await client.subscribe(SUBJECT, cb=receive)
                yield lambda payload: client.publish(SUBJECT, payload)
            finally:
                await client.close()

        settings = {"log_servers": [server.address], "log_monitors": [server.monitor]}
        yield FuzzedOrder(settings, stranger)
    finally:
        server.stop()


@contextmanager
def etcd_order(folder: Path) -> Iterator[FuzzedOrder]:
    """Runs one server of etcd."""
    with EtcdServers(folder, 1) as servers:
        address = f"{HOST}:{servers.ports[servers.names[0]]}"

        @asynccontextmanager
        async def stranger(take: Take) -> AsyncIterator[Publish]:
            size = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            async with grpc.aio.insecure_channel(address, size) as channel:
                put = channel.unary_unary(
                    "/etcdserverpb.KV/Put", PutRequest.SerializeToString, PutResponse.FromString
                )
                watch = channel.stream_stream(
                    "/etcdserverpb.Watch/Watch",
                    WatchRequest.SerializeToString,
                    WatchResponse.FromString,
                )

                async def asked() -> AsyncIterator[WatchRequest]:
                    yield WatchRequest(create_request=WatchCreateRequest(key=KEY))
                    await asyncio.Event().wait()  # The server ends a watch with what asks for it.

                async def receive() -> None:
                    async for answer in watch(asked()):
                        for event in answer.events:
                            take(event.kv.value)

                receiving = asyncio.create_task(receive())
                try:
                    yield lambda payload: put(PutRequest(key=KEY, value=payload))
                finally:
                    receiving.cancel()
                    with suppress(asyncio.CancelledError):
                        await receiving

        yield FuzzedOrder(servers.settings, stranger)


ORDERS = {"nats": nats_order, "etcd": etcd_order}
