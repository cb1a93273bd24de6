"""The total orders that the checker runs a group on: servers that can be killed, a log to read.

An order is a `KilledOrder`; `ORDERS` names them for `--order`. The log is read from the servers
themselves, by none of the members' code.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

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
from groupcert.members.benchmarks.etcd_servers import EtcdServers
from groupcert.members.benchmarks.nats_servers import NatsServers
from groupcert.members.host.loopback import HOST

GROUP = "local"
ETCD_KEY = f"groupcert/{GROUP}/log".encode()
FETCH_SECONDS = 240


class KilledOrder(Protocol):
    """Servers of an order, as processes on this machine."""

    @property
    def names(self) -> tuple[str, ...]:
        """The servers."""
        ...

    @property
    def settings(self) -> dict[str, object]:
        """Settings of members on this order."""
        ...

    def start_all(self) -> None:
        """Starts every server, and returns when they are ready."""
        ...

    def leader(self) -> str:
        """Returns the server that leads; empty if nobody knows."""
        ...

    def kill(self, name: str) -> None:
        """Kills a server without warning."""
        ...

    def start(self, name: str) -> None:
        """Starts a server again."""
        ...

    def wait_ready(self) -> None:
        """Returns when every server has all of the log."""
        ...

    def stop_all(self) -> None:
        """Ends every server."""
        ...

    def read(self) -> list[tuple[int, bytes]]:
        """Returns every message of the group's log, with its sequence."""
        ...


class NatsOrder:
    """Three servers of NATS JetStream, which keep three copies."""

    def __init__(self, folder: Path) -> None:
        self._servers = NatsServers(folder)
        self.names = self._servers.names

    @property
    def settings(self) -> dict[str, object]:
        """Settings of members on this order."""
        return self._servers.settings

    def start_all(self) -> None:
        """Starts every server, and returns when they are ready."""
        self._servers.__enter__()

    def leader(self) -> str:
        """Returns the server that leads the group's stream; empty if nobody knows."""
        return self._servers.leader()

    def kill(self, name: str) -> None:
        """Kills a server without warning."""
        self._servers.stop(name, signal.SIGKILL)

    def start(self, name: str) -> None:
        """Starts a server again."""
        self._servers.start(name)

    def wait_ready(self) -> None:
        """Returns when every server says that its streams are current."""
        self._servers.wait_ready()

    def stop_all(self) -> None:
        """Ends every server."""
        self._servers.__exit__(None, None, None)

    def read(self) -> list[tuple[int, bytes]]:
        """Returns every message of the group's log, with its sequence."""
        return asyncio.run(self._read())

    async def _read(self) -> list[tuple[int, bytes]]:
        client = await nats.connect(servers=self._servers.servers)
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


class EtcdOrder:
    """Three servers of etcd."""

    def __init__(self, folder: Path) -> None:
        self._servers = EtcdServers(folder)
        self.names = self._servers.names

    @property
    def settings(self) -> dict[str, object]:
        """Settings of members on this order."""
        return self._servers.settings

    def start_all(self) -> None:
        """Starts every server, and returns when they are ready."""
        self._servers.__enter__()

    def leader(self) -> str:
        """Returns the server that leads; empty if no server says so of itself."""
        for name, port in self._servers.ports.items():
            with suppress(grpc.RpcError), grpc.insecure_channel(f"{HOST}:{port}") as channel:
                status = channel.unary_unary(
                    "/etcdserverpb.Maintenance/Status",
                    StatusRequest.SerializeToString,
                    StatusResponse.FromString,
                )(StatusRequest(), timeout=1)
                if status.leader == status.header.member_id:
                    return name
        return ""

    def kill(self, name: str) -> None:
        """Kills a server without warning."""
        self._servers.kill(name)

    def start(self, name: str) -> None:
        """Starts a server again."""
        self._servers.start(name)

    def wait_ready(self) -> None:
        """Returns when every server can serve: it then has all that was committed before."""
        self._servers.wait_ready()

    def stop_all(self) -> None:
        """Ends every server."""
        self._servers.__exit__(None, None, None)

    def read(self) -> list[tuple[int, bytes]]:
        """Returns every message of the group's log, with its sequence: each put of its key, after
        the one that made it.
        """
        port = next(iter(self._servers.ports.values()))
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


ORDERS: Mapping[str, Callable[[Path], KilledOrder]] = {"nats": NatsOrder, "etcd": EtcdOrder}
