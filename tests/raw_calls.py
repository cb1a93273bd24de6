"""Calls whose sender does what no client of gRPC does: it keeps the last byte of its messages, or
reads nothing.

It speaks as much of HTTP/2 as that takes (RFC 9113), and sends no more than its windows allow.
"""

import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Self

DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
ACKNOWLEDGED, END_STREAM, END_HEADERS = 1, 1, 4
INITIAL_WINDOW, FRAME_BYTES = 4, 16_384
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
Headers = Sequence[tuple[str, str]]


class RawCalls:
    """A connection, and calls over it; a context manager."""

    def __init__(
        self, address: str, window: int | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Connects. The member may send 64 KiB of answers in all, and `window` bytes of each: the
        windows stay as they are.
        """
        host, _, port = address.rpartition(":")
        self.ended: set[int] = set()
        """The calls that the server has ended."""
        self.sent = 0
        """Bytes of messages."""
        self._changed = threading.Condition()
        self._is_sending = threading.Lock()
        self._window, self._initial = 65_535, 65_535
        self._windows: dict[int, int] = {}
        self._greeted = False
        self._socket = socket.create_connection((host, int(port)))
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        settings = b"" if window is None else struct.pack(">HI", INITIAL_WINDOW, window)
        self._write(PREFACE + frame(SETTINGS, 0, 0, settings))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        with self._changed:
            assert self._changed.wait_for(lambda: self._greeted, 120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(OSError):  # The member may have hung up.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def begin(self, call: str, size: int, metadata: Headers = ()) -> int:
        """Begins a call with a message that is said to have so many bytes; returns its number."""
        with self._changed:
            number = 2 * len(self._windows) + 1
            self._windows[number] = self._initial
        pseudo = ((":method", "POST"), (":scheme", "http"), (":path", call), (":authority", "a"))
        usual = (("te", "trailers"), ("content-type", "application/grpc"))
        block = b"".join(literal(*each) for each in (*pseudo, *usual, *metadata))
        self._write(frame(HEADERS, END_HEADERS, number, block))
        self.send({number: b"\0" + struct.pack(">I", size)})
        return number

    def ask(self, call: str, request: bytes, metadata: Headers = ()) -> int:
        """Begins a call with its whole message; returns its number."""
        number = self.begin(call, len(request), metadata)
        self.send({number: request})
        return number

    def send(self, messages: dict[int, bytes], patience_s: float = 1.0) -> None:
        """Sends so much of messages as the server lets in, until it lets in no more for a while."""
        left = {number: memoryview(message) for number, message in messages.items()}
        while left:
            with self._changed:
                if not self._changed.wait_for(partial(self._open, left), patience_s):
                    return
                number = self._open(left)
                room = min(self._window, self._windows[number], FRAME_BYTES)
                piece, left[number] = left[number][:room], left[number][room:]
                self._window -= len(piece)
                self._windows[number] -= len(piece)
            self.sent += len(piece)
            self._write(frame(DATA, 0, number, bytes(piece)))
            left = {
                number: rest for number, rest in left.items() if rest and number not in self.ended
            }

    def wait_ended(self, count: int, timeout_s: float = 120.0) -> None:
        """Returns when so many calls have ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ended) >= count, timeout_s), self.ended

    def _open(self, left: dict[int, memoryview]) -> int:
        """A call that may be sent more of; 0: none."""
        if self._window <= 0:
            return 0
        return next((each for each in left if self._windows[each] > 0), 0)

    def _write(self, data: bytes) -> None:
        with self._is_sending:
            self._socket.sendall(data)

    def _read(self) -> None:
        with self._socket.makefile("rb") as file, suppress(OSError):
            while len(head := file.read(9)) == 9:
                kind, flags = head[3], head[4]
                number = int.from_bytes(head[5:], "big")
                payload = file.read(int.from_bytes(head[:3], "big"))
                with self._changed:
                    self._take(kind, flags, number, payload)
                    self._changed.notify_all()

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACKNOWLEDGED:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == INITIAL_WINDOW:
                    for each in self._windows:
                        self._windows[each] += value - self._initial
                    self._initial = value
            self._greeted = True
            self._write(frame(SETTINGS, ACKNOWLEDGED, 0, b""))
        elif kind == PING and not flags & ACKNOWLEDGED:
            self._write(frame(PING, ACKNOWLEDGED, 0, payload))
        elif kind == WINDOW_UPDATE and number:
            self._windows[number] += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self._window += int.from_bytes(payload, "big")
        elif kind == RESET or (kind == HEADERS and flags & END_STREAM):
            self.ended.add(number)


def frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, number) + payload


def literal(name: str, value: str) -> bytes:
    """A header without compression (RFC 7541, 6.2.2)."""
    texts = (name.encode(), value.encode())
    assert all(len(text) < 127 for text in texts), "a longer one has a longer length"
    return b"\0" + b"".join(bytes([len(text)]) + text for text in texts)
