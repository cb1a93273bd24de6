"""Metrics of an applier for Prometheus, read from its status when they are asked for.

The rule it keeps: names are `groupcert_applier_<thing>_<unit|total>`, in base units; labels come
from closed sets. The table of them is in members/README.md.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from certifier.errors import PortTaken
from members.applier_status import Observe

GAUGES = {
    "pending_transactions": "transactions that are not visible yet",
    "pending_bytes": "bytes of their changes",
    "assigned_transactions": "those among them that the scheme has taken",
    "parallelism_mean": "workers at work when a transaction was handed over, the mean",
    "lag_seconds": "age of the newest state that the target shows whole",
    "behind_transactions": "transactions of the source that the target lacks",
}
COUNTERS = {
    "committed_transactions": "transactions that became visible",
    "committed_groups": "group commits",
    "skipped_transactions": "transactions that were executed before",
}
CAUSES = {
    "holds": "transactions that had to wait at the head of the queue",
    "fallbacks": "returns to sequential execution",
}
WORKER_COUNTERS = {
    "executed_transactions": "transactions that a worker executed",
    "retried_transactions": "executions that failed for a moment",
}
PREFIX = "groupcert_applier_"


class ApplierCollector(Collector):
    """The metrics of one applier."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe

    def collect(self) -> Iterator[Metric]:
        """Yields every metric; none while there is no applier."""
        status = self._observe()
        if status is None:
            return
        coordinator = status.coordinator
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, text, value=getattr(coordinator, name))
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(PREFIX + name, text, value=getattr(coordinator, name))
        running = float(coordinator.state == "running")
        yield GaugeMetricFamily(PREFIX + "running", "whether the applier runs", value=running)
        for name, text in CAUSES.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=["cause"])
            for one in getattr(coordinator, name):
                family.add_metric([one.cause], one.count)
            yield family
        for name, text in WORKER_COUNTERS.items():
            family = CounterMetricFamily(PREFIX + "worker_" + name, text, labels=["worker"])
            for worker in status.workers:
                family.add_metric([str(worker.worker)], getattr(worker, name))
            yield family


def serve_metrics(address: str, observe: Observe) -> Callable[[], None]:
    """Serves them over HTTP at `host:port`; returns what ends that.

    Raises PortTaken: somebody else serves there.
    """
    registry = CollectorRegistry()
    registry.register(ApplierCollector(observe))
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), addr=host.strip("[]"), registry=registry)
    except OSError:
        raise PortTaken(address=address) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
