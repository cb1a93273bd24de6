"""The total orders that the checker runs a group on: servers that can be killed, a log to read.

An order is a `KilledOrder`; `ORDERS` names them for `--order`. The log is read from the servers
themselves, by none of the members' code.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import nats
from nats.js.errors import NotFoundError

from groupcert.members.benchmarks.nats_servers import NatsServers

GROUP = "local"
FETCH_SECONDS = 30


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


ORDERS: Mapping[str, Callable[[Path], KilledOrder]] = {"nats": NatsOrder}
