"""Members and log servers as processes on loopback, with a command that restarts any of them.

It stands for what an operator has: `docker compose restart m1`, `systemctl restart ...`.
"""

import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST
from tests.log_servers import NatsServers

CALL = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])"


class Operated(NamedTuple):
    """A group that runs."""

    group: LocalGroup
    logs: NatsServers
    command: str
    """Restarts the process `{name}`, and returns when it is started."""
    restarted: list[str]
    """By the command, in order."""


@contextmanager
def operated_group(folder: Path) -> Iterator[Operated]:
    """Three members on three log servers, for as long as the block lasts."""
    with (
        NatsServers(folder / "log") as logs,
        LocalGroup(folder / "members", settings=logs.settings) as group,
    ):
        restarted: list[str] = []

        class Operator(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path[1:]
                restarted.append(name)
                if name in group.names:
                    group.stop_member(name)
                    group.start_member(name)
                else:
                    logs.stop(name)
                    logs.start(name)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_words: object) -> None:
                """Says nothing."""

        # Processes end with the thread that started them: it has to outlive them.
        server = HTTPServer((HOST, 0), Operator)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            words = [sys.executable, "-c", CALL, f"http://{HOST}:{server.server_port}/{{name}}"]
            yield Operated(group, logs, shlex.join(words), restarted)
        finally:
            server.shutdown()
            server.server_close()
