"""Metrics and a probe over HTTP, for processes that have no console: replicas and companions."""

from collections.abc import Callable

from prometheus_client.registry import Collector

from groupcert.members.console.http_server import serve
from groupcert.members.console.paths import page, paths, told
from groupcert.members.services.metrics import metrics_application


def serve_metrics(address: str, *collectors: Collector) -> Callable[[], None]:
    """Serves `/metrics` and `/healthz` at `host:port`; returns a function that stops that.

    Raises PortTaken if another program serves there.
    """
    alive = page(lambda: told("alive"))
    metrics = metrics_application(*collectors)
    return serve(address, paths({"/metrics": metrics, "/healthz": alive}))
