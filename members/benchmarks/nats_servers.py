"""Real NATS servers as processes on loopback, for benchmarks and tests that stop some of them.

They keep three copies of a stream and sync every write, as those of `deploy/` do.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from groupcert.certifier.errors import LogServerUnavailable
from groupcert.members.host import die_with_parent
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.total_order.embedded_server import server_binary

START_SECONDS_MAX = STOP_SECONDS = 120.0
POLL_SECONDS = 0.02
CONFIG = """\
server_name: {name}
listen: "{host}:{port}"
http: "{host}:{monitor_port}"
pid_file: "{folder}/nats-server.pid"
log_file: "{folder}/nats-server.log"
max_payload: 8388608
max_pending: 268435456
lame_duck_grace_period: "100s"
jetstream {{ store_dir: "{folder}", sync_interval: always }}
cluster {{ name: local, listen: "{host}:{route_port}", routes: [{routes}] }}
"""


class NatsServers:
    """Log servers `log1`, `log2`, ...; started again, one has the same ports and messages."""

    def __init__(self, folder: Path, servers: int = 3) -> None:
        """Prepares."""
        self.names = tuple(f"log{number}" for number in range(1, servers + 1))
        self.ports = {name: free_port() for name in self.names}
        self._monitor_ports = {name: free_port() for name in self.names}
        self._route_ports = {name: free_port() for name in self.names}
        self._folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def servers(self) -> list[str]:
        """Where members connect."""
        return [f"nats://{HOST}:{port}" for port in self.ports.values()]

    @property
    def monitors(self) -> dict[str, str]:
        """By name, where the servers tell of themselves over HTTP."""
        return {name: f"http://{HOST}:{port}" for name, port in self._monitor_ports.items()}

    @property
    def settings(self) -> dict[str, object]:
        """Settings of members on this log."""
        monitors = list(self.monitors.values())
        return {"log_servers": self.servers, "log_monitors": monitors, "log_replicas": 3}

    def start(self, name: str) -> None:
        """Starts a server that is not running; it is ready later."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        routes = ", ".join(f'"nats://{HOST}:{port}"' for port in self._route_ports.values())
        config = folder / "nats-server.conf"
        config.write_text(
            CONFIG.format(
                name=name,
                host=HOST,
                port=self.ports[name],
                monitor_port=self._monitor_ports[name],
                route_port=self._route_ports[name],
                folder=folder,
                routes=routes,
            )
        )
        self.processes[name] = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())),
                *(server_binary(), "-c", str(config)),
            ],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self, name: str, signal_number: int = signal.SIGTERM) -> None:
        """Stops a server as its operator would, and returns when it has ended."""
        process = self.processes.pop(name)
        process.send_signal(signal_number)
        process.wait(STOP_SECONDS)

    def kill(self, name: str) -> None:
        """Ends a server as a crash would."""
        self.stop(name, signal.SIGKILL)

    def page(self, name: str, path: str) -> Any:
        """Returns what a server tells of itself; None if it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.monitors[name]}/{path}", timeout=2) as page:
                return json.load(page)
        except (OSError, ValueError):
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

    def wait_ready(self) -> None:
        """Returns when every server says that its streams are current."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not all(self.page(name, "healthz") for name in self.processes):
            if time.monotonic() > deadline:
                raise LogServerUnavailable(address=self.servers[0], cause="not ready in time")
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
