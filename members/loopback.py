"""Ports for the servers that are started here."""

import random
import socket

HOST = "127.0.0.1"
_PORTS = range(20_000, 32_000)
"""Below those that Linux gives to connections, so that none of them gets a port between its choice
and its use."""


def free_port() -> int:
    """A port of `HOST` that nobody listens on."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                return port
