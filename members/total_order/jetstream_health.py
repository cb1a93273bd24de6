"""Asks JetStream for the state of a stream's servers, again and again.

The rule it keeps: it has a task of its own and never waits for the log's other users, so that it
sees an outage while they are stuck in it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from .jetstream_connection import (
    JetStreamConnection,
    JetStreamRefused,
    NotAnswered,
)
from .server_health import LogHealth, LogServers, ServerAnswer

PERIOD_SECONDS = 0.5
ANSWER_SECONDS_MAX = 1.0
"""Seconds; shorter than `LOST_MS`, so that the end of an election is seen soon."""


class JetStreamHealth:
    """The health of one stream's servers; `run` asks them."""

    def __init__(
        self,
        connection: JetStreamConnection,
        stream: str,
        acknowledged_ms: Callable[[], int | None],
    ) -> None:
        """Asks over `connection`; `acknowledged_ms`: how long ago the stream took a message."""
        self._connection = connection
        self._stream = stream
        self._acknowledged_ms = acknowledged_ms
        self._servers = LogServers(_now_ms())

    def now(self, full: str = "") -> LogHealth:
        """Returns the servers' health, as far as they have answered; `full`: why they take no more
        messages.
        """
        return self._servers.health(_now_ms(), self._acknowledged_ms(), full)

    def take(self, document: dict[str, Any]) -> None:
        """Notes a description of the stream that another part asked for; that of a new stream may
        not list its servers.
        """
        if "cluster" in document:
            self._servers.answered(_now_ms(), *servers_of(document["cluster"]))

    async def run(self) -> None:
        """Asks until the connection is closed."""
        connection = self._connection
        verb = f"STREAM.INFO.{self._stream}"
        while not connection.client.is_closed:
            try:
                if connection.client.is_connected:  # Else the library keeps a request for later.
                    self.take(await connection.request(verb, {}, timeout_s=ANSWER_SECONDS_MAX))
                else:
                    self._servers.failed(connection.problem or "not connected")
            except (NotAnswered, JetStreamRefused) as error:
                self._servers.failed(str(error))
            await asyncio.sleep(PERIOD_SECONDS)


def servers_of(cluster: dict[str, Any]) -> tuple[str, list[ServerAnswer]]:
    """Returns the leader and all servers of a stream, from the `cluster` part of its description.

    The leader is not among its own `replicas`. `active` is the time since it heard of a server, in
    nanoseconds; 0 for one that is not current stands for never.
    """
    leader = cluster.get("leader", "")
    servers = [ServerAnswer(leader, is_current=True)] if leader else []
    for replica in cluster.get("replicas") or ():
        is_current, active_ns = bool(replica.get("current")), replica.get("active", 0)
        servers.append(
            ServerAnswer(
                replica["name"],
                is_current,
                replica.get("lag", 0),
                active_ns // 1_000_000 if active_ns or is_current else None,
                bool(replica.get("offline")),
            )
        )
    return leader, servers


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
