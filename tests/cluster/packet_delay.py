"""Holds packets back: `python -m tests.cluster.packet_delay QUEUE DELAY_MS`.

For kernels without `sch_netem`, the usual way to delay packets. The kernel hands those that match a
rule to this process by number (a netfilter queue), which says "go on" to each one when its time has
come, in their order. What it adds beyond the delay is a wake-up of this process, some 0.1 ms, and
more where the machine is busy: a lower bound, not a precise clock.

Source: linux/netfilter/nfnetlink_queue.h.
"""

import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator

NETLINK_NETFILTER = 12
NETLINK_NO_ENOBUFS = 5
SOL_NETLINK = 270
PACKET, VERDICT, CONFIG = (3 << 8 | message for message in range(3))
CONFIG_COMMAND, CONFIG_PARAMETERS, CONFIG_LENGTH = 1, 2, 3
BIND, COPY_META = 1, 1
ACCEPT = 1
ERROR = 2
REQUEST, ACKNOWLEDGE = 1, 4
PACKETS_MAX = 100_000
"""Packets that wait at a time; more are dropped, as in a full network device."""
RECEIVE_BYTES = 1 << 20
PARENT_SECONDS = 1.0


class PacketQueue:
    """One of the kernel's numbered queues."""

    def __init__(self, number: int) -> None:
        """Takes the queue; OSError if another process has it, or without the right to."""
        self._number = number
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self.socket.bind((0, 0))
        self.socket.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
        self._configure(CONFIG_COMMAND, struct.pack("!BxH", BIND, socket.AF_INET))
        self._configure(CONFIG_PARAMETERS, struct.pack("!IB", 0, COPY_META))
        self._configure(CONFIG_LENGTH, struct.pack("!I", PACKETS_MAX))

    def receive(self) -> Iterator[int]:
        """The numbers of the packets that came."""
        for kind, body in _messages(self.socket.recv(RECEIVE_BYTES)):
            if kind == PACKET:
                yield struct.unpack_from("!I", body, 8)[0]  # After nfgenmsg and attribute header.

    def accept(self, packet: int) -> None:
        """Lets a packet go on."""
        self._send(VERDICT, REQUEST, _attribute(2, struct.pack("!II", ACCEPT, packet)))

    def _configure(self, attribute: int, value: bytes) -> None:
        self._send(CONFIG, REQUEST | ACKNOWLEDGE, _attribute(attribute, value))
        for kind, body in _messages(self.socket.recv(RECEIVE_BYTES)):
            error = struct.unpack_from("=i", body)[0] if kind == ERROR else 0
            if error:
                raise OSError(-error, f"packet queue {self._number}")

    def _send(self, kind: int, flags: int, attribute: bytes) -> None:
        body = struct.pack("!BBH", socket.AF_UNSPEC, 0, self._number) + attribute
        self.socket.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body)


def _attribute(kind: int, value: bytes) -> bytes:
    padding = bytes(-len(value) % 4)
    return struct.pack("=HH", 4 + len(value), kind) + value + padding


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and body of each netlink message."""
    start = 0
    while start + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, start)
        yield kind, data[start + 16 : start + length]
        start += (length + 3) & ~3


def hold_packets(queue: PacketQueue, delay_s: float) -> None:
    """Lets each packet go on after the delay, for as long as the process that started it lives."""
    waiting: deque[tuple[float, int]] = deque()
    parent = os.getppid()
    while os.getppid() == parent:
        limit = max(0.0, waiting[0][0] - time.monotonic()) if waiting else PARENT_SECONDS
        if select.select([queue.socket], [], [], limit)[0]:
            due = time.monotonic() + delay_s
            waiting.extend((due, packet) for packet in queue.receive())
        while waiting and waiting[0][0] <= time.monotonic():
            queue.accept(waiting.popleft()[1])


def main() -> None:
    """Says "ready" when it has the queue; ends by SIGTERM, and the kernel drops what it held."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    number, delay_ms = int(sys.argv[1]), float(sys.argv[2])
    queue = PacketQueue(number)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    hold_packets(queue, delay_ms / 1000)


if __name__ == "__main__":
    main()
