"""Metrics and a probe over HTTP, for processes that have no console: replicas and companions."""

from collections.abc import Callable

from prometheus_client.registry import Collector

from ..services.metrics import metrics_application
from .http_server import serve
from .paths import page, paths, told


def serve_metrics(address: str, *collectors: Collector) -> Callable[[], None]:
    """Serves `/metrics` and `/healthz` at `host:port`; returns a function that stops that.

    Raises PortTaken if another program serves there.
    """
    alive = page(lambda: told("alive"))
    metrics = metrics_application(*collectors)
    return serve(address, paths({"/metrics": metrics, "/healthz": alive}))
