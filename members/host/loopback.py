"""The loopback address, and ports for the servers that are started here."""

import ipaddress
import itertools
import random
import socket

HOST = "127.0.0.1"
_RANGE = range(20_000, 32_000)
"""Ports below those that Linux gives to connections, so that none of them gets a port between its
choice and its use."""
_PORTS = itertools.cycle(random.SystemRandom().sample(_RANGE, len(_RANGE)))
"""A random order, different in each process even with a seed; each port comes once before any comes
again."""


def free_port() -> int:
    """Returns a port of `HOST` that is not in use, and that was not chosen here lately."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                return port


def is_loopback(host: str) -> bool:
    """Returns whether a host, as it stands in an address, is this machine whatever a resolver says.

    >>> [is_loopback(host) for host in ("127.0.0.1", "[::1]", "localhost", "10.0.0.1", "")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
