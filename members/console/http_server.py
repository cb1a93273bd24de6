"""A small HTTP server for pages, metrics and probes, in threads of its own.

The standard library's server waits for ever for whoever sends slowly, and has a thread for each of
them. The rule it keeps: a connection has one request, `HEAD_BYTES_MAX` and a few seconds; when all
places are taken, the one that has waited longest for its caller gives way. So whoever holds
connections keeps nobody else out.
"""

import io
import socket
import sys
import threading
import time
from collections.abc import Callable
from socketserver import TCPServer, ThreadingMixIn
from typing import IO, Any, Final, cast
from wsgiref.handlers import SimpleHandler
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

import structlog

from ...certifier.errors import PortTaken

HEAD_BYTES_MAX: Final = 16 << 10
HEAD_SECONDS: Final = 3.0
"""Seconds for a request to arrive."""
CONNECTION_SECONDS: Final = 20.0
"""Seconds until the answer has been taken; metrics may wait 5 s for the member's event loop."""
CONNECTIONS_MAX: Final = 32
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def serve(address: str, application: WSGIApplication) -> Callable[[], None]:
    """Serves an application at `host:port`; returns a function that stops that.

    Raises PortTaken if another program serves there.
    """
    host, _, port = address.rpartition(":")
    try:
        server = _Server(host.strip("[]"), int(port))
    except OSError:
        raise PortTaken(address=address) from None
    server.set_app(application)
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, tuple[float, bool]] = {}
        """Connections: since when, and whether a request has arrived."""
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Binds without asking name servers what this machine is called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread, if there is a place."""
        with self._lock:
            waiting = [each for each, (_, has_arrived) in self._open.items() if not has_arrived]
            if len(self._open) < CONNECTIONS_MAX or waiting:
                if len(self._open) >= CONNECTIONS_MAX:
                    _hang_up(waiting[0])
                    del self._open[waiting[0]]
                self._open[request] = time.monotonic(), False
                super().process_request(request, client_address)
                return
        self.shutdown_request(request)

    def arrived(self, request: socket.socket) -> None:
        """Notes that a connection's request is there."""
        with self._lock:
            if request in self._open:
                self._open[request] = self._open[request][0], True

    def shutdown_request(self, request: Any) -> None:
        """Ends a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Hangs up on whoever is too slow; called twice a second."""
        now = time.monotonic()
        with self._lock:
            for request, (since, has_arrived) in self._open.items():
                if now - since > (CONNECTION_SECONDS if has_arrived else HEAD_SECONDS):
                    _hang_up(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs what is no fault of the caller."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("http_failed", peer=str(client_address), text=repr(error))


class _Handler(WSGIRequestHandler):
    server: _Server
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain; charset=utf-8"

    def setup(self) -> None:
        """Reads no more than a request may have."""
        super().setup()
        self.rfile.close()
        self._head = _Head(self.connection)
        self.rfile = io.BufferedReader(self._head)

    def handle(self) -> None:
        """Answers one request."""
        self.raw_requestline = self.rfile.readline(HEAD_BYTES_MAX)
        if not self.parse_request():
            return
        if not self._head.left:
            self.send_error(431, f"A request's head has at most {HEAD_BYTES_MAX} bytes")
            return
        self.server.arrived(self.connection)
        environ = self.get_environ()
        environ["CONTENT_LENGTH"] = ""  # No page takes a body: none is read.
        application = self.server.get_app()
        assert application is not None
        output = cast("IO[bytes]", self.wfile)
        _Answer(io.BytesIO(), output, io.StringIO(), environ, multithread=True).run(application)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: anybody may ask as often as they like."""


class _Answer(SimpleHandler):
    server_software = "groupcert"


class _Head(io.RawIOBase):
    """The first bytes of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.left = HEAD_BYTES_MAX
        self._connection = connection

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads some of them; none at their end."""
        count = self._connection.recv_into(memoryview(buffer)[: self.left]) if self.left else 0
        self.left -= count
        return count


def _hang_up(request: socket.socket) -> None:
    """Wakes the thread that waits for a connection's caller, which then ends it."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # Its caller has hung up.
