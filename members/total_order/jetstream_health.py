"""Asks JetStream for the state of a stream's servers, again and again, and servers over HTTP for
what no client is told: whether they sync every write, how much they have room for, and whether one
of them can write no more.

`JetStreamHealth` has a task of its own and never waits for the log's other users, so that it sees
an outage while they are stuck in it. A server whose disk is full answers a message with nothing at
all, and goes on so when there is space again, until it is restarted: only its monitoring says it.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from ..security.credentials import Tls
from .jetstream_connection import (
    JetStreamConnection,
    JetStreamRefused,
)
from .served_log import NotAnswered, now_ms, page_of
from .server_health import LogServers, ServerAnswer

NO_SPACE_WORDS = ("no space left", "quota exceeded", "file too large")
"""Words of the system for a disk that takes no more, as in an error of a write."""
PERIOD_SECONDS = 0.5
ANSWER_SECONDS_MAX = 1.0
"""Seconds; shorter than `LOST_MS`, so that the end of an election is seen soon."""


class JetStreamHealth:
    """The health of one stream's servers; `run` asks them."""

    def __init__(self, connection: JetStreamConnection, stream: str, servers: LogServers) -> None:
        """Asks over `connection`, and tells `servers`."""
        self._connection = connection
        self._stream = stream
        self._servers = servers

    def take(self, document: dict[str, Any]) -> None:
        """Notes a description of the stream that another part asked for; that of a new stream may
        not list its servers.
        """
        if "cluster" in document:
            self._servers.answered(now_ms(), *servers_of(document["cluster"]))

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


class Promises(NamedTuple):
    """The promises of the servers of a log."""

    syncs_always: bool | None = None
    """Whether all sync every write; None: one does not say."""
    room_bytes: int | None = None
    """Bytes that the fullest of them has room for; None: none says."""


def promises_of(monitors: tuple[str, ...], tls: Tls | None = None) -> Promises:
    """Reads the promises of servers at these addresses, `http://host:port`."""
    syncs: list[bool] = []
    rooms: list[int] = []
    for page in _pages(monitors, "varz", tls):
        jetstream = page.get("jetstream", {})
        config, stored = jetstream.get("config", {}), jetstream.get("stats", {}).get("storage")
        syncs.append(bool(config.get("sync_always", False)))
        if config.get("max_storage", -1) >= 0 and stored is not None:
            rooms.append(max(config["max_storage"] - stored, 0))
    # One that does not answer may be the one that does not sync.
    all_sync = True if syncs and len(syncs) == len(monitors) else None
    return Promises(False if False in syncs else all_sync, min(rooms, default=None))


def write_error(monitors: tuple[str, ...], tls: Tls | None = None) -> str:
    """Returns the error of a server that cannot write for want of space; empty if none says so."""
    errors = (str(page.get("error", "")) for page in _pages(monitors, "healthz", tls))
    return next((each for each in errors if has_no_space(each)), "")


def has_no_space(text: str) -> bool:
    """Returns whether an error's text says that a disk takes no more."""
    return any(words in text.lower() for words in NO_SPACE_WORDS)


def _pages(monitors: tuple[str, ...], name: str, tls: Tls | None) -> Iterator[dict[str, Any]]:
    """Yields a page of each server that answers."""
    for monitor in monitors:
        with suppress(ValueError):
            yield json.loads(page_of(f"{monitor}/{name}", tls))
