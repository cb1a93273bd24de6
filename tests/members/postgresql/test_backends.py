"""The member's socket: nobody who has connected waits for one that has ended, and nobody is
served who cannot prove to know the token.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from groupcert.certifier.gtid import Gtid
from groupcert.members.postgresql.backend_socket import BackendSocket, short
from groupcert.members.postgresql.backends import Backend, BackendServer, Request, Wait
from groupcert.members.postgresql.commit_order import Entry
from groupcert.members.postgresql.handshake import (
    ASKER,
    Nonces,
    ask,
    framed,
    proof_of,
)

TOKEN = "secret"
STATUS, REQUEST = "status", "1 1 0"
TURNS_MAX = 5
"""Of the event loop, by which a connection that waited to be accepted is served."""


def server_at(
    path: Path,
    serve: Callable[[Backend, Request | Wait], Coroutine[Any, Any, None]] | None = None,
    lost: Callable[[], None] = lambda: None,
    account: int | None = None,
) -> BackendServer:
    """Returns a member's server, of this account; by default it answers no transaction."""
    uid = os.geteuid() if account is None else account
    describe: Callable[[], object] = partial(dict, version=7)
    return BackendServer(BackendSocket(path, TOKEN, uid), serve or never, lost, describe)


def question(client: socket.socket, token: str, frame: str) -> str:
    """Asks a member one thing; its answer."""
    with client.makefile("rb") as answers:
        return ask(client, answers, token, frame)


async def ask_and_hang_up(path: Path, frame: str, asked: asyncio.Event) -> None:
    """Asks a member, and hangs up once it has been asked."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        asking = asyncio.create_task(asyncio.to_thread(question, client, TOKEN, frame))
        await asked.wait()
        client.shutdown(socket.SHUT_RDWR)
        with suppress(ConnectionError):
            await asking


async def never(_backend: Backend, _request: Request | Wait) -> None:
    """Gives no answer."""
    await asyncio.Event().wait()


async def end_of(client: socket.socket) -> bytes:
    """Returns what the other side sends before it hangs up."""
    client.setblocking(False)
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 4_096), 10)
    except ConnectionError:
        return b""


@pytest.mark.parametrize("turns", range(TURNS_MAX + 1))
def test_a_backend_that_connects_while_the_member_ends_is_hung_up_on(
    tmp_path: Path, turns: int
) -> None:
    path = tmp_path / "socket"

    async def connect_and_end() -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            async with server_at(path):
                client.connect(str(path))
                client.sendall(framed("1"))
                for _ in range(turns):
                    await asyncio.sleep(0)
            while await end_of(client):
                pass  # The member's nonce.
            return True

    assert uvloop.run(connect_and_end())


def test_who_proves_to_know_the_token_is_answered(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["deep" * 10] * 4)
    folder.mkdir(parents=True)
    path = folder / "socket"
    assert len(str(path)) > 107

    async def connect() -> str:
        with socket.socket(socket.AF_UNIX) as client:
            async with server_at(path):
                with short(path) as address:
                    client.connect(address)
                assert path.stat().st_mode & 0o777 == 0o600
                return await asyncio.to_thread(question, client, TOKEN, STATUS)

    assert json.loads(uvloop.run(connect())) == {"version": 7}
    assert not path.exists()


def test_a_member_that_cannot_prove_itself_is_told_nothing(tmp_path: Path) -> None:
    path = tmp_path / "socket"

    async def connect() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            async with server_at(path):
                client.connect(str(path))
                await asyncio.to_thread(question, client, "another", STATUS)

    with pytest.raises(PermissionError, match="cannot prove"):
        uvloop.run(connect())


@pytest.mark.parametrize("is_sent_back", [False, True])
def test_who_asks_without_the_token_is_hung_up_on(tmp_path: Path, is_sent_back: bool) -> None:
    """Even if it sends the member's own proof back."""
    path = tmp_path / "socket"

    async def connect() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            async with server_at(path):
                client.connect(str(path))
                return await asyncio.to_thread(intrude, client, is_sent_back)

    assert uvloop.run(connect()) == b""


def intrude(client: socket.socket, is_sent_back: bool) -> bytes:
    """Asks without the token; returns what comes after the member's proof."""
    client.sendall(framed("1"))
    with client.makefile("rb") as answers:
        answer = answers.read(int.from_bytes(answers.read(4))).decode()
        assert TOKEN not in answer
        nonce, proof = answer.split(" ")
        if not is_sent_back:
            proof = proof_of("another", ASKER, Nonces("1", nonce))
        client.sendall(framed(proof) + framed(STATUS))
        return answers.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="a process of another account needs root")
def test_another_account_is_hung_up_on(tmp_path: Path) -> None:
    """Even where it reaches the socket: it is not told as much as a nonce."""
    path = Path(tempfile.mkdtemp(dir="/tmp")) / "socket"
    path.parent.chmod(0o755)
    script = (
        "import socket, sys; client = socket.socket(socket.AF_UNIX); client.connect(sys.argv[1]);"
        " client.settimeout(10); sys.stdout.write(repr(client.recv(1)))"
    )
    command = ["setpriv", "--reuid=nobody", "--clear-groups", sys.executable, "-c", script]

    async def connect() -> str:
        async with server_at(path):
            path.chmod(0o666)
            process = await asyncio.create_subprocess_exec(
                *command, str(path), stdout=subprocess.PIPE
            )
            return (await process.communicate())[0].decode()

    try:
        assert asyncio.run(connect()) == "b''"
    finally:
        path.parent.rmdir()


def test_one_member_at_a_time_has_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    (tmp_path / "socket.lock").touch()
    one, other = (BackendSocket(path, TOKEN, os.geteuid()) for _ in range(2))
    assert one.lock() and not other.lock()
    one.close()
    assert other.lock()
    other.close()


def test_no_folder_of_another_account_is_used(tmp_path: Path) -> None:
    """As root the member would replace files that are none of the server's."""
    (tmp_path / "socket.lock").touch()
    with pytest.raises(PermissionError, match="is owned by uid"):
        BackendSocket(tmp_path / "socket", TOKEN, os.geteuid() + 1).lock()


def test_nothing_but_a_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.write_text("a file")
    (tmp_path / "socket.lock").touch()
    with pytest.raises(FileExistsError, match="something else"):
        BackendSocket(path, TOKEN, os.geteuid()).lock()
    assert path.read_text() == "a file"


def test_a_backend_that_has_died_gets_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    asked, lost = asyncio.Event(), asyncio.Event()
    waiting: list[Backend] = []

    async def wait(backend: Backend, _request: Request | Wait) -> None:
        waiting.append(backend)
        asked.set()

    async def die_and_answer() -> list[Backend]:
        async with server_at(path, wait, lost.set):
            await ask_and_hang_up(path, REQUEST, asked)
            await lost.wait()
            waiting[0].grant(Entry(1, Gtid("source", 1), (), 7), None)
        return waiting

    assert len(uvloop.run(die_and_answer())) == 1


def test_nobody_waits_for_a_backend_that_has_hung_up(tmp_path: Path) -> None:
    """Whoever is cancelled hangs up; what it waits for may never come."""
    path = tmp_path / "socket"
    asked, cancelled = asyncio.Event(), asyncio.Event()
    waits: list[Request | Wait] = []

    async def wait(_backend: Backend, request: Request | Wait) -> None:
        waits.append(request)
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def hang_up() -> None:
        async with server_at(path, wait):
            await ask_and_hang_up(path, "wait\x007", asked)
            await cancelled.wait()

    uvloop.run(hang_up())
    assert waits == [Wait(7)]
