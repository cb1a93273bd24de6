"""Servers of etcd as processes on loopback, for benchmarks and tests that stop some of them.

They are those of Debian's package `etcd-server`, with the settings of `deploy/compose.etcd.yaml`.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from groupcert.members.host import die_with_parent
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.host.server_missing import ServerMissing

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.01
FLAGS = (
    *("--heartbeat-interval", "30", "--election-timeout", "300"),
    *("--snapshot-count", "2000", "--quota-backend-bytes", str(8 << 30)),
    *("--max-request-bytes", str(10 << 20), "--logger", "zap"),
)


class EtcdServers:
    """Servers `log1`, `log2`, ...; started again, one has the same ports and data."""

    def __init__(
        self, folder: Path, servers: int = 3, *, flags: tuple[str, ...] = (), scheme: str = ""
    ) -> None:
        """Prepares.

        Args:
            flags: More flags of all servers, or the same with other values.
            scheme: `s` where clients have to come over TLS.
        """
        self.names = tuple(f"log{number}" for number in range(1, servers + 1))
        self.ports = {name: free_port() for name in self.names}
        self._peer_ports = {name: free_port() for name in self.names}
        self.folder = folder
        self._flags = flags
        self._scheme = scheme
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where members connect."""
        return tuple(f"etcd{self._scheme}://{HOST}:{port}" for port in self.ports.values())

    @property
    def peers(self) -> dict[str, str]:
        """Where servers reach each other, by name."""
        return {name: f"http://{HOST}:{port}" for name, port in self._peer_ports.items()}

    @property
    def settings(self) -> dict[str, object]:
        """Settings of members on this log."""
        return {"log_servers": list(self.addresses), "log_monitors": []}

    def name_of(self, address: str) -> str:
        """Returns the name of the server at `host:port`."""
        port = int(address.rpartition(":")[2])
        return next(name for name, each in self.ports.items() if each == port)

    def start(self, name: str, *flags: str) -> None:
        """Starts a server that is not running, with flags of its own; it is ready later."""
        self.folder.mkdir(parents=True, exist_ok=True)
        client = f"http{self._scheme}://{HOST}:{self.ports[name]}"
        peers = self.peers
        cluster = ",".join(f"{each}={peer}" for each, peer in peers.items())
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())),
                    *(etcd_binary(), "--name", name, "--data-dir", str(self.folder / name)),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peers[name]),
                    *("--initial-advertise-peer-urls", peers[name], "--initial-cluster", cluster),
                    *FLAGS,
                    *self._flags,
                    *flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str, signal_number: int = signal.SIGTERM) -> None:
        """Stops a server, and returns when it has ended."""
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
        for name in self.processes:
            while not self._is_healthy(name):
                is_running = self.processes[name].poll() is None
                if not is_running or time.monotonic() > deadline:
                    said = (self.folder / f"{name}.log").read_text(errors="replace")[-2_000:]
                    raise RuntimeError(f"etcd {name} is not ready: {said}")
                time.sleep(POLL_SECONDS)

    def _is_healthy(self, name: str) -> bool:
        if self._scheme:  # Its own metrics would ask for a certificate.
            said = (self.folder / f"{name}.log").read_text(errors="replace")
            return "ready to serve client requests" in said or "serving client" in said
        with suppress(OSError):
            url = f"http://{HOST}:{self.ports[name]}/health"
            with urllib.request.urlopen(url, timeout=1) as page:
                return b'"true"' in page.read()
        return False

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


def etcd_binary() -> str:
    """Returns the path of the server. Raises ServerMissing if there is none."""
    found = shutil.which("etcd")
    if found is None:
        raise ServerMissing(server="etcd", advice="sudo apt-get install etcd-server")
    return found
