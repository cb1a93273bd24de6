"""The loopback address, and ports for the servers that are started here."""

import errno
import ipaddress
import itertools
import random
import socket
from collections.abc import Iterator
from functools import cache

HOST = "127.0.0.1"
_RANGE = range(20_000, 32_000)
"""Ports below those that Linux gives to connections, so that none of them gets a port between its
choice and its use."""
_OWN_MAX = 250
"""Ports that a process chooses before it chooses them again: more than it uses at a time. Each
takes an open file."""
_claimed: set[int] = set()
"""Ports that this process has claimed."""


def free_port() -> int:
    """Returns a port of `HOST` that is not in use, that was not chosen here lately, and that no
    other process chooses here while this one lives.
    """
    return next(port for port in _ports() if is_free(port))


def is_free(port: int) -> bool:
    """Returns whether nobody listens on a port of `HOST`."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0


def claim(port: int) -> bool:
    """Returns whether a certain port of `HOST` may be used: it is free, and no other process here
    has claimed it. From then on it is this process's own until that ends, also while what listens
    there has not started yet, or starts again.
    """
    return is_free(port) and (port in _claimed or _claim_by_name(port))


def _claim_by_name(port: int) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as owner:
        try:
            owner.bind(f"\0groupcert/port/{port}")
        except OSError as error:  # Without such names only who listens already counts.
            return error.errno != errno.EADDRINUSE
        owner.detach()  # It stays open.
    _claimed.add(port)
    return True


@cache
def _ports() -> Iterator[int]:
    """Returns ports that this process claims one after the other, and once it has enough these
    again and again.
    """
    chosen = random.SystemRandom().sample(_RANGE, len(_RANGE))
    return itertools.cycle(itertools.islice(filter(claim, chosen), _OWN_MAX))


def is_loopback(host: str) -> bool:
    """Returns whether a host, as it stands in an address, is this machine whatever a resolver says.

    >>> [is_loopback(host) for host in ("127.0.0.1", "[::1]", "localhost", "10.0.0.1", "")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
