"""Metrics of members and appliers for Prometheus, computed from their status on request.

The rule it keeps: names are `groupcert_<area>_<thing>_<unit|total>`, in base units; labels come
from closed sets. members/services/README.md has the tables of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from groupcert.v1.group_pb2 import LOG_SERVER_STATE_CURRENT, GroupStatus, MemberState, MemberStatus

from .applier import Observe
from .group_problems import ProblemKind, problems_of

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


Reading = tuple[str, str | Callable[[MemberStatus], float]]
"""One number of a member's status: its description, and the field it is or what computes it."""

GROUP_GAUGES: Mapping[str, tuple[str, Callable[[GroupStatus], float]]] = {
    "group_view_members": ("members of the view", lambda group: len(group.members)),
    "group_suspected_members": (
        "members of the view that were silent for too long",
        lambda group: sum(each.suspected for each in group.members),
    ),
    "group_departed_members": (
        "members that left or were expelled, and are not forgotten",
        lambda group: len(group.departed),
    ),
    "member_takes_transactions": (
        "whether the group's mode lets this member write",
        lambda group: group.primary in ("", group.observer.name),
    ),
}
MEMBER_GAUGES: Mapping[str, Reading] = {
    "member_certified_version": ("newest version that is certified here", "certified_version"),
    "member_committed_version": ("newest version that is visible here", "committed_version"),
    "member_durable_version": ("newest version that is on this member's disk", "durable_version"),
    "member_stable_version": ("newest version that every member has executed", "stable_version"),
    "member_open_snapshots": ("snapshots that clients have open", "open_snapshots"),
    "certification_info_items": (
        "items that certification knows the last writer of",
        "certification_info_items",
    ),
    "relay_queue_transactions": (
        "remote transactions that are not visible yet",
        "relay_queue_length",
    ),
    "relay_queue_bytes": ("bytes of their changes", "relay_queue_bytes"),
    "log_read_sequence": ("the log's last message that was read", "log_sequence"),
    "log_publishing_messages": ("messages on their way to the log", "publishing_messages"),
    "log_unacknowledged_seconds": (
        "age of the oldest message that the log has not acknowledged",
        lambda status: status.log_unacknowledged_ms / 1e3,
    ),
    "log_replicas": ("servers that hold the log", "log_replicas"),
    "log_has_leader": (
        "whether the log's servers have a leader",
        lambda status: bool(status.log.leader),
    ),
    "log_servers_current": (
        "servers that have all of the log",
        lambda status: sum(each.state == LOG_SERVER_STATE_CURRENT for each in status.log.servers),
    ),
    "log_acknowledged_seconds": (
        "time since the log took a message of this member",
        lambda status: status.log.acknowledged_ms / 1e3,
    ),
    "log_bytes": ("bytes of the log", lambda status: status.log.bytes),
    "log_bytes_max": (
        "bytes up to which its servers have space for it; 0: they do not say",
        lambda status: status.log.bytes_max,
    ),
    "log_durable": ("whether all of them sync every write", "log_durable"),
    "binary_log_files": ("files of the binary log", "binary_log_files"),
    "binary_log_bytes": ("their bytes", "binary_log_bytes"),
    "certification_log_waiting_rows": (
        "rows of the certification log that wait for a file",
        "certification_log_waiting_rows",
    ),
    "certification_log_waiting_bytes": (
        "what they take in the store",
        "certification_log_waiting_bytes",
    ),
    "certification_log_waiting_bytes_max": (
        "how much they may take before they are given up",
        "certification_log_waiting_bytes_max",
    ),
    "certification_log_failing": (
        "whether the last file of the certification log could not be written",
        lambda status: bool(status.certification_log_error),
    ),
    "flow_control_lag_transactions": (
        "transactions that the slowest member has not applied",
        "slowest_lag",
    ),
    "recovery_copied_bytes": (
        "bytes of a donor's state that are copied",
        lambda status: status.recovery.bytes_done,
    ),
    "recovery_total_bytes": (
        "bytes that the donor's state has",
        lambda status: status.recovery.bytes_total,
    ),
}
MEMBER_COUNTERS: Mapping[str, Reading] = {
    "member_local_transactions": (
        "transactions that this member's clients committed",
        "transactions_local",
    ),
    "member_applied_transactions": (
        "transactions that the applier has made visible",
        "transactions_applied",
    ),
    "log_skipped_messages": (
        "messages of the log that were no valid message of a member",
        "skipped_messages",
    ),
    "binary_log_transactions": ("transactions that the binary log took", "binlog_commits"),
    "certification_log_written_rows": (
        "rows in the files of the certification log that this process has written",
        "certification_log_written_rows",
    ),
    "flow_control_held_seconds": (
        "time that transactions waited for the slowest member",
        lambda status: status.flow_control_held_ms / 1e3,
    ),
    "binary_log_commit_groups": ("groups that they were committed in", "binlog_group_commits"),
}
VERDICTS = ("certified", "conflict", "too_old", "refused")
"""Counts of this run: a counter that continued from a store would jump, or go back after a
crash."""


class MemberCollector(Collector):
    """The metrics of one member; `ApplierCollector` has those of its applier."""

    def __init__(self, observe: Callable[[], GroupStatus | None]) -> None:
        self._observe = observe

    def collect(self) -> Iterator[Metric]:
        """Yields every metric; none while the member is starting."""
        group = self._observe()
        if group is None:
            return
        status = group.observer
        for name, (text, of_group) in GROUP_GAUGES.items():
            yield GaugeMetricFamily(f"groupcert_{name}", text, of_group(group))
        yield CounterMetricFamily(
            "groupcert_group_views", "views that the group has had", value=group.view_id
        )
        for name, (text, source) in MEMBER_GAUGES.items():
            yield GaugeMetricFamily(f"groupcert_{name}", text, _number(status, source))
        for name, (text, source) in MEMBER_COUNTERS.items():
            yield CounterMetricFamily(f"groupcert_{name}", text, _number(status, source))
        states = {
            name.removeprefix("MEMBER_STATE_"): float(number == status.state)
            for name, number in MemberState.items()[1:]
        }
        text = "1 for the state that this member is in"
        yield _labelled(GaugeMetricFamily, "groupcert_member_state", text, "state", states)
        found = Counter(problem.kind for problem in problems_of(group))
        # For each of them `groupcert status` exits with 1; one member cannot see the kind left out.
        problems = {
            kind.value: found[kind]
            for kind in ProblemKind
            if kind is not ProblemKind.MEMBER_UNREACHABLE
        }
        text = "what is wrong, as this member sees it"
        yield _labelled(GaugeMetricFamily, "groupcert_problems", text, "kind", problems)
        verdicts = {verdict: getattr(status.run_verdicts, verdict) for verdict in VERDICTS}
        name, text = "groupcert_certification_transactions", "transactions that were certified here"
        yield _labelled(CounterMetricFamily, name, text, "verdict", verdicts)


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
            counts = {one.cause: one.count for one in getattr(coordinator, name)}
            yield _labelled(CounterMetricFamily, PREFIX + name, text, "cause", counts)
        for name, text in WORKER_COUNTERS.items():
            counts = {str(each.worker): getattr(each, name) for each in status.workers}
            yield _labelled(CounterMetricFamily, f"{PREFIX}worker_{name}", text, "worker", counts)


class Measurement(NamedTuple):
    """One metric; with `label`, a number for each value of that."""

    name: str
    text: str
    value: float | Mapping[str, float]
    label: str = ""
    is_counter: bool = False


class PlainCollector(Collector):
    """The metrics of a process that names them itself, such as a companion."""

    def __init__(self, observe: Callable[[], Iterable[Measurement]]) -> None:
        self._observe = observe

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics as they are now."""
        for name, text, value, label, is_counter in self._observe():
            family = CounterMetricFamily if is_counter else GaugeMetricFamily
            if isinstance(value, Mapping):
                yield _labelled(family, name, text, label, value)
            else:
                yield family(name, text, value=value)


def _number(status: MemberStatus, source: str | Callable[[MemberStatus], float]) -> float:
    return source(status) if callable(source) else float(getattr(status, source))


def _labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    """Returns a metric with one number for each value of its label."""
    family = kind(name, text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def metrics_application(*collectors: Collector) -> WSGIApplication:
    """Returns a WSGI application that serves the collectors' metrics to Prometheus."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return make_wsgi_app(registry)
