"""Addresses of log servers: their parts, and how they may be shown."""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a log server is, and who asks it."""

    scheme: str
    host_and_port: str
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, address: str, default_port: int) -> "ServerAddress":
        """Returns the parts of an address.

        >>> ServerAddress.parse("etcd://member:secret@log1", 2379)
        ServerAddress(scheme='etcd', host_and_port='log1:2379', user='member')
        """
        parts = urlsplit(address)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return cls(
            scheme=parts.scheme,
            host_and_port=f"{host}:{parts.port or default_port}",
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
        )


def without_password(address: str) -> str:
    """Returns an address as logs and errors may show it: `nats://host:port`."""
    scheme, separator, place = address.partition("://")
    return f"{scheme}{separator}{place.rpartition('@')[2]}"
