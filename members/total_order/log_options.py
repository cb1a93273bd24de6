"""Chooses between the adapters of the port by the addresses of a group's log servers."""

from typing import Any

from ...certifier.errors import InvalidSetting
from ..security.credentials import Tls
from . import etcd
from .etcd import EtcdOptions, EtcdOrder
from .jetstream import JetStreamOptions, JetStreamOrder

LogOptions = JetStreamOptions | EtcdOptions


def options_of(
    servers: tuple[str, ...],
    *,
    group: str,
    replicas: int,
    monitors: tuple[str, ...],
    tls: Tls | None,
    in_flight_max: int,
    connect_ms_max: int,
) -> LogOptions:
    """Returns the options of a log's adapter: of etcd's where the addresses begin with `etcd://` or
    `etcds://`, else of JetStream's.

    Raises InvalidSetting: they are of both.
    """
    schemes = {server.partition("://")[0] for server in servers}
    asked: dict[str, Any] = {
        "servers": servers,
        "group": group,
        "replicas": replicas,
        "monitors": monitors,
        "tls": tls,
        "connect_ms_max": connect_ms_max,
    }
    if schemes <= set(etcd.SCHEMES):
        return EtcdOptions(**asked)
    if schemes & set(etcd.SCHEMES):
        expected = "addresses of etcd, or of NATS, and not of both"
        raise InvalidSetting(
            name="log_servers", value=", ".join(sorted(schemes)), expected=expected
        )
    return JetStreamOptions(**asked, in_flight_max=in_flight_max)


def make_order(options: LogOptions) -> JetStreamOrder | EtcdOrder:
    """Returns the log that these options say, not opened yet."""
    return EtcdOrder(options) if isinstance(options, EtcdOptions) else JetStreamOrder(options)
