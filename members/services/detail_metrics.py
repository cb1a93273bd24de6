"""Metrics of a member's inside: how long steps take, why calls are refused, how its store is.

The rule it keeps: the event loop only copies numbers, which takes a fraction of a millisecond; the
thread that serves the metrics makes a text of them.
"""

import platform
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.core import (
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ...certifier.storage.store import Store
from ..core.views import FORMAT_VERSION
from ..door.answer_budget import AnswerBudget
from ..door.call_times import CallTimes
from ..host.histogram import Histogram
from ..runtime.observation import Observation
from ..total_order.server_health import LogHealth, LogServerState
from ..wire.statuses import leaves
from .metrics import Measurement, family_of

PROCESS_COLLECTORS: tuple[Collector, ...] = (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR)
"""The metrics of any process, by the names that its library gives them."""
STORE_PROPERTIES = {
    "total-sst-files-size": ("files_bytes", "bytes of its files"),
    "size-all-mem-tables": ("memory_tables_bytes", "bytes of its memory tables"),
    "block-cache-usage": ("block_cache_bytes", "bytes of blocks that are kept in memory"),
    "estimate-pending-compaction-bytes": (
        "pending_compaction_bytes",
        "bytes that compactions have to rewrite, an estimate",
    ),
    "num-files-at-level0": ("level0_files", "files that no compaction has taken up"),
    "num-running-compactions": ("compactions_running", "compactions that run"),
    "is-write-stopped": ("writes_stopped", "whether RocksDB takes no writes"),
}
"""Metrics of the store by the names of RocksDB's properties."""


class Distributions(NamedTuple):
    """One metric: a histogram for each value of its labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    histograms: Mapping[tuple[str, ...], Histogram]


class Details(NamedTuple):
    """A copy of what a member has counted, for any thread."""

    distributions: tuple[Distributions, ...]
    refusals: Mapping[str, int]
    unsent_bytes: int
    store: Mapping[str, Mapping[str, int]]
    """By RocksDB's property and the family of the store."""
    log: LogHealth


def details(observed: Observation, calls: CallTimes, answers: AnswerBudget) -> Details:
    """Returns the counts of a member so far; to be called on its event loop."""
    return Details(
        distributions=(*_commits(observed), *_log(observed), _calls(calls)),
        refusals=dict(calls.refusals),
        unsent_bytes=answers.bytes,
        store=_store(observed.store),
        log=observed.log_health,
    )


class DetailCollector(Collector):
    """The metrics of `Details`, and of the program that counts them."""

    def __init__(self, group: str, member: str, observe: Callable[[], Details | None]) -> None:
        self._build = {
            "group": group,
            "member": member,
            "version": version("groupcert"),
            "python": platform.python_version(),
            "format_version": str(FORMAT_VERSION),
        }
        self._observe = observe

    def collect(self) -> Iterator[Metric]:
        """Yields every metric; while the member is starting, only what it is."""
        text = "1, with the member that this is, its release and the newest format that it reads"
        build = GaugeMetricFamily("groupcert_build_info", text, labels=[*self._build])
        build.add_metric([*self._build.values()], 1)
        yield build
        found = self._observe()
        if found is None:
            return
        for distributions in found.distributions:
            yield _histograms(distributions)
        reasons = sorted({kind.reason for kind in leaves()} | found.refusals.keys())
        counts = {reason: found.refusals.get(reason, 0) for reason in reasons}
        text = "calls that were refused"
        yield family_of(Measurement("groupcert_call_refusals", text, counts, "reason", True))
        text = "bytes of answers that nobody has taken yet, without the small ones"
        yield family_of(Measurement("groupcert_call_unsent_bytes", text, found.unsent_bytes))
        for name, (metric, text) in STORE_PROPERTIES.items():
            sizes = found.store[name]
            yield family_of(Measurement(f"groupcert_store_{metric}", text, sizes, "family"))
        text = "1 for the state that a server of the log is in"
        servers = GaugeMetricFamily("groupcert_log_server_state", text, labels=["server", "state"])
        for server in found.log.servers:
            for state in LogServerState:
                servers.add_metric([server.name, state.name], server.state is state)
        yield servers


def _commits(observed: Observation) -> Iterator[Distributions]:
    stages = observed.stages
    yield Distributions(
        "groupcert_commit_seconds",
        "time from the call to the answer, of transactions that clients of this member handed in",
        ("outcome",),
        {(verdict.name.lower(),): spent.copy() for verdict, spent in stages.verdicts.items()},
    )
    yield Distributions(
        "groupcert_commit_stage_seconds",
        "time that they spent in a stage on their way",
        ("stage",),
        {(stage,): spent.copy() for stage, spent in stages.stages.items()},
    )
    yield Distributions(
        "groupcert_apply_seconds",
        "time from reading a transaction of any member in the log until it is visible here",
        (),
        {(): stages.applied.copy()},
    )


def _log(observed: Observation) -> Iterator[Distributions]:
    yield Distributions(
        "groupcert_log_append_seconds",
        "time until the log acknowledged a message of this member",
        (),
        {(): observed.append_seconds.copy()},
    )
    yield Distributions(
        "groupcert_log_message_transactions",
        "transactions of a message of this member, of those that have any",
        (),
        {(): observed.batch_sizes.copy()},
    )


def _calls(calls: CallTimes) -> Distributions:
    """Returns the calls by service and method, without the package, and by code."""
    return Distributions(
        "groupcert_call_seconds",
        "time that calls took",
        ("method", "code"),
        {
            (call.rpartition(".")[2], code): spent.copy()
            for (call, code), spent in calls.seconds.items()
        },
    )


def _store(store: Store) -> dict[str, dict[str, int]]:
    return {
        name: {family.value: number for family, number in store.property(name).items()}
        for name in STORE_PROPERTIES
    }


def _histograms(distributions: Distributions) -> Metric:
    name, text, labels, histograms = distributions
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, histogram in histograms.items():
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        counts = accumulate(histogram.counts)
        family.add_metric(values, list(zip(bounds, counts, strict=True)), histogram.sum)
    return family
