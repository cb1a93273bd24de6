"""The embedded log server: the real one, started and ended as users do."""

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from groupcert.certifier.errors import LogServerUnavailable, PortTaken
from groupcert.members.total_order.embedded_server import LogServer
from groupcert.members.total_order.jetstream import JetStreamOptions, JetStreamOrder
from tests.members.total_order.test_port import payloads_of, publish_all, read_until

pytestmark = pytest.mark.nats


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LogServer]:
    """A log server in a new directory, not started."""
    server = LogServer(tmp_path / "log")
    yield server
    server.stop()


async def test_messages_and_port_survive_a_restart(server: LogServer) -> None:
    server.start()
    address = server.address
    options = JetStreamOptions(servers=(address,), group="restart")
    order = JetStreamOrder(options)
    before = await order.open(create=True)
    await publish_all(order, payloads_of(5))
    await order.close()
    server.stop()
    server.start()
    assert server.address == address
    order = JetStreamOrder(options)
    after = await order.open(create=False)
    assert after.identity == before.identity
    assert [d.payload for d in await read_until(order, 1, 5)] == payloads_of(5)
    await order.close()


def test_it_syncs_every_write(server: LogServer) -> None:
    server.start()
    with urllib.request.urlopen(f"{server.monitor}/varz") as page:
        config = json.load(page)["jetstream"]["config"]
    assert config["sync_always"] is True


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"127\.0\.0\.1:{port} is in use"):
            LogServer(tmp_path, port=port).start()


def test_a_second_server_in_the_directory_is_refused(server: LogServer, tmp_path: Path) -> None:
    server.start()
    with pytest.raises(LogServerUnavailable, match="another log server runs in"):
        LogServer(tmp_path / "log").start()
    assert Path(f"/proc/{server.pid}").exists()


def test_a_server_that_cannot_start_says_why(server: LogServer, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "jetstream").write_text("a file where the store would be")
    with pytest.raises(LogServerUnavailable, match=r"status 1: .*directory is not a directory"):
        server.start()


def test_stopping_twice_is_stopping_once(server: LogServer) -> None:
    server.start()
    process_id = server.pid
    server.stop()
    server.stop()
    assert not Path(f"/proc/{process_id}").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time;"
        "from groupcert.members.total_order.embedded_server import LogServer;"
        "server = LogServer(pathlib.Path(sys.argv[1])); server.start();"
        "print(server.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        server_pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    with suppress(psutil.NoSuchProcess):
        psutil.Process(server_pid).wait(60)
    successor = LogServer(tmp_path)
    successor.start()
    successor.stop()
