"""Asks the other members of a group what they say of themselves.

A page that shows only what one member hears through the log would show a member that was killed as
alive until it is suspected. The rule it keeps: each member is asked over a connection of its own,
one question at a time, so that one that does not answer holds nothing up.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc.aio

from groupcert.v1 import admin_pb2, admin_pb2_grpc, group_pb2, group_pb2_grpc

from ...certifier.errors import NotServing
from ..security.credentials import Credentials
from ..wire.channels import token_metadata
from ..wire.peer_status import open_peer_channel
from ..wire.statuses import error_from

ANSWER_SECONDS = 1.0
"""Seconds after which a member counts as one that does not answer."""
SETTINGS_SECONDS = 60.0
"""Settings change only with a restart: they are asked for as seldom, and after each silence."""


@dataclass(slots=True)
class Peer:
    """One other member, as it answers."""

    name: str
    address: str
    status: group_pb2.GroupStatus | None = None
    """The last one; None: it has not answered yet."""
    newest_version: int = 0
    """The newest version that was certified anywhere when it answered: what it lags behind."""
    settings: Mapping[str, str] | None = None
    """Its own settings; None: it has not told them."""
    problem: str = ""
    """Why it did not answer the last question; empty: it did."""
    silent_since_us: int = 0
    """When it first did not, in microseconds since 1970; 0: it does."""


class Peers:
    """The members that are asked; to be used on the event loop."""

    def __init__(self, credentials: Credentials, newest_version: Callable[[], int]) -> None:
        """Begins with none; `newest_version` returns the newest version that is certified here."""
        self._credentials = credentials
        self._newest_version = newest_version
        self._asked: dict[str, _Asked] = {}

    @property
    def known(self) -> Mapping[str, Peer]:
        """The members, by name."""
        return {name: asked.peer for name, asked in self._asked.items()}

    async def ask(self, addresses: Mapping[str, str], seconds: float) -> None:
        """Asks the members at these addresses, by name, and forgets all others; returns when all
        have answered, or after `seconds`: the rest answers later.
        """
        gone = [name for name, each in self._asked.items() if addresses.get(name) != each.address]
        forgotten = [self._asked.pop(name) for name in gone]
        for name in addresses.keys() - self._asked.keys():
            self._asked[name] = _Asked(Peer(name, addresses[name]), self._credentials)
        questions = [each.ask(self._newest_version) for each in self._asked.values()]
        for each in forgotten:
            await each.close()
        if questions:
            await asyncio.wait(questions, timeout=seconds)

    async def close(self) -> None:
        """Stops asking."""
        await self.ask({}, 0)


class _Asked:
    """A member with the connection to it, and the question that it has not answered."""

    def __init__(self, peer: Peer, credentials: Credentials) -> None:
        self.peer, self.address = peer, peer.address
        self._channel = open_peer_channel(peer.address, credentials)
        self._metadata = token_metadata(credentials)
        self._has_tls = credentials.tls is not None
        self._settings_at = -SETTINGS_SECONDS
        self._question: asyncio.Task[None] | None = None

    def ask(self, newest_version: Callable[[], int]) -> "asyncio.Task[None]":
        """Returns the question that is under way, or begins one."""
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._ask(newest_version))
        return self._question

    async def close(self) -> None:
        """Ends the question and the connection."""
        if self._question is not None:
            self._question.cancel()
            await asyncio.wait((self._question,))
        await self._channel.close(None)

    async def _ask(self, newest_version: Callable[[], int]) -> None:
        peer = self.peer
        try:
            response = await group_pb2_grpc.GroupServiceStub(self._channel).GetStatus(
                group_pb2.GetStatusRequest(), timeout=ANSWER_SECONDS, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            failure = error_from(error, peer.address, has_tls=self._has_tls)
            is_silent = isinstance(failure, NotServing)
            peer.problem = f"nothing answers at {peer.address}" if is_silent else str(failure)
            peer.silent_since_us = peer.silent_since_us or time.time_ns() // 1000
            self._settings_at = -SETTINGS_SECONDS
            return
        peer.status, peer.problem, peer.silent_since_us = response.status, "", 0
        peer.newest_version = max(response.status.observer.certified_version, newest_version())
        if time.monotonic() - self._settings_at >= SETTINGS_SECONDS:
            self._settings_at = time.monotonic()
            await self._ask_settings()

    async def _ask_settings(self) -> None:
        try:
            response = await admin_pb2_grpc.AdminServiceStub(self._channel).GetSettings(
                admin_pb2.GetSettingsRequest(), timeout=ANSWER_SECONDS, metadata=self._metadata
            )
        except grpc.aio.AioRpcError:
            self.peer.settings = None
        else:
            self.peer.settings = dict(response.member_settings)
