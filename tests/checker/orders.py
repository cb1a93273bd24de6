"""The total orders that the checker runs a group on: servers that can be killed, a log to read.

`ORDERS` names them for `--order`. The log is read from the servers themselves, by none of the
members' code.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeAlias

import grpc
import nats
from nats.js.errors import NotFoundError

from groupcert.etcd.rpc_pb2 import (
    RangeRequest,
    RangeResponse,
    StatusRequest,
    StatusResponse,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from groupcert.members.host.loopback import HOST
from tests.log_servers import EtcdServers, NatsServers

GROUP = "local"
ETCD_KEY = f"groupcert/{GROUP}/log".encode()
FETCH_SECONDS = 240


class NatsOrder(NatsServers):
    """Three servers of NATS JetStream, which keep three copies."""

    def read(self) -> list[tuple[int, bytes]]:
        """Returns every message of the group's log, with its sequence."""
        return asyncio.run(self._read())

    async def _read(self) -> list[tuple[int, bytes]]:
        client = await nats.connect(servers=list(self.addresses))
        try:
            log = client.jetstream()
            state = (await log.stream_info(f"GROUPCERT_{GROUP}")).state
            reader = await log.subscribe(f"groupcert.{GROUP}.log", ordered_consumer=True)
            messages: list[tuple[int, bytes]] = []
            while not messages or messages[-1][0] < state.last_seq:
                message = await reader.next_msg(timeout=FETCH_SECONDS)
                messages.append((message.metadata.sequence.stream, message.data))
            return messages
        except NotFoundError:
            return []
        finally:
            await client.close()


class EtcdOrder(EtcdServers):
    """Three servers of etcd."""

    def leader(self) -> str:
        """Returns the server that leads; empty if no server says so of itself."""
        for name, port in self.ports.items():
            with suppress(grpc.RpcError), grpc.insecure_channel(f"{HOST}:{port}") as channel:
                status = channel.unary_unary(
                    "/etcdserverpb.Maintenance/Status",
                    StatusRequest.SerializeToString,
                    StatusResponse.FromString,
                )(StatusRequest(), timeout=1)
                if status.leader == status.header.member_id:
                    return name
        return ""

    def read(self) -> list[tuple[int, bytes]]:
        """Returns every message of the group's log, with its sequence: each put of its key, after
        the one that made it.
        """
        port = next(iter(self.ports.values()))
        size = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(f"{HOST}:{port}", options=size) as channel:
            newest = channel.unary_unary(
                "/etcdserverpb.KV/Range", RangeRequest.SerializeToString, RangeResponse.FromString
            )(RangeRequest(key=ETCD_KEY), timeout=FETCH_SECONDS)
            if not newest.kvs:
                return []
            asked: SimpleQueue[WatchRequest | None] = SimpleQueue()
            create = WatchCreateRequest(key=ETCD_KEY, start_revision=newest.kvs[0].create_revision)
            asked.put(WatchRequest(create_request=create))
            watch = channel.stream_stream(
                "/etcdserverpb.Watch/Watch",
                WatchRequest.SerializeToString,
                WatchResponse.FromString,
            )
            answers = iter(watch(iter(asked.get, None), timeout=FETCH_SECONDS))
            messages: list[tuple[int, bytes]] = []
            while len(messages) < newest.kvs[0].version - 1:
                events = next(answers).events
                puts = [(event.kv.version - 1, event.kv.value) for event in events]
                messages += [each for each in puts if each[0]]
            asked.put(None)
            return messages


KilledOrder: TypeAlias = NatsOrder | EtcdOrder
ORDERS: Mapping[str, type[KilledOrder]] = {"nats": NatsOrder, "etcd": EtcdOrder}
