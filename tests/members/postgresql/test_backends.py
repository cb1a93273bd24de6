"""The companion's socket: nobody who has connected waits for one that has ended."""

import asyncio
import json
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from groupcert.members.postgresql.backends import Backend, BackendServer, Request

TOKEN = "secret"
TURNS_MAX = 5
"""Of the event loop, by which a connection that waited to be accepted is served."""


def frame(message: object) -> bytes:
    """Returns a message as backends send it."""
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


REQUEST = frame({"token": TOKEN}) + frame(
    {"transaction_id": "1", "pid": 1, "version": 0, "rows": [], "items": []}
)


async def never(_backend: Backend, _request: Request) -> None:
    """Gives no answer."""
    await asyncio.Event().wait()


async def end_of(client: socket.socket) -> bytes:
    """Returns what the other side sends before it hangs up."""
    client.setblocking(False)
    said = b""
    with suppress(ConnectionError):
        while part := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 99), 10):
            said += part
    return said


@pytest.mark.parametrize("turns", range(TURNS_MAX + 1))
def test_a_backend_that_connects_while_the_companion_ends_is_hung_up_on(
    tmp_path: Path, turns: int
) -> None:
    path = tmp_path / "socket"

    async def connect_and_end() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            async with BackendServer(path, TOKEN, never, lost=lambda: None, describe=dict):
                client.connect(str(path))
                client.sendall(REQUEST)
                for _ in range(turns):
                    await asyncio.sleep(0)
            return await end_of(client)

    assert uvloop.run(connect_and_end()) == b""


def test_a_backend_with_another_token_is_hung_up_on(tmp_path: Path) -> None:
    path = tmp_path / "socket"

    async def connect() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            async with BackendServer(path, "another", never, lost=lambda: None, describe=dict):
                client.connect(str(path))
                client.sendall(REQUEST)
                return await end_of(client)

    assert uvloop.run(connect()) == b""


def test_a_backend_that_has_died_gets_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    asked, lost = asyncio.Event(), asyncio.Event()
    waiting: list[Backend] = []

    async def wait(backend: Backend, _request: Request) -> None:
        waiting.append(backend)
        asked.set()

    async def die_and_answer() -> list[Backend]:
        async with BackendServer(path, TOKEN, wait, lost.set, describe=dict):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                client.sendall(REQUEST)
                await asked.wait()
            await lost.wait()
            waiting[0].grant(1, "source", 1, None)
        return waiting

    assert len(uvloop.run(die_and_answer())) == 1
