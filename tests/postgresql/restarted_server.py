"""A PostgreSQL server that is killed and started again, at the same address."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from groupcert.members.host.loopback import free_port
from tests import servers
from tests.integration.waiting import wait_for


class RestartedServer:
    """Runs from `start` on, until `stop`.

    All starts are made by one thread, which lives until `stop`: a server ends with the thread that
    started it.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` holds everything."""
        self._folder = folder
        self._port = free_port()
        self._running = ExitStack()
        self._starter = ThreadPoolExecutor(1)
        self.server: servers.PostgreSqlServer

    def start(self) -> None:
        """Starts it; after a kill, once the last of its processes has ended."""
        wait_for("the server starts", lambda: self._starter.submit(self._has_started).result())

    def kill(self, number: signal.Signals) -> None:
        """Ends it by a signal: SIGKILL, or SIGQUIT, which is `pg_ctl stop --mode immediate`."""
        os.kill(self.server.pid, number)
        self._running.close()

    def stop(self) -> None:
        """Stops it as its operator would."""
        self._running.close()
        self._starter.shutdown()

    def _has_started(self) -> bool:
        try:
            self.server = self._running.enter_context(
                servers.postgresql_server(self._folder, port=self._port)
            )
        except RuntimeError:  # The memory of the one that was killed is still in use.
            return False
        return True
