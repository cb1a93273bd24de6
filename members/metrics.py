"""Metrics of members and appliers for Prometheus, read from their status when they are asked for.

The rule it keeps: names are `groupcert_<area>_<thing>_<unit|total>`, in base units; labels come
from closed sets. The tables of them are in members/README.md.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from certifier.errors import PortTaken
from groupcert.v1.group_pb2 import (
    LOG_SERVER_STATE_CURRENT,
    GroupStatus,
    MemberState,
    MemberStatus,
)
from members.applier_status import Observe
from members.problems import ProblemKind, problems_of

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


class Reading(NamedTuple):
    """One number of a member's status: what it tells, and where it is."""

    text: str
    value: Callable[[MemberStatus], float]


MEMBER_GAUGES: Mapping[str, Reading] = {
    "member_certified_version": Reading(
        "newest version that is certified here", lambda status: status.certified_version
    ),
    "member_committed_version": Reading(
        "newest version that is visible here", lambda status: status.committed_version
    ),
    "member_durable_version": Reading(
        "newest version that is on this member's disk", lambda status: status.durable_version
    ),
    "member_stable_version": Reading(
        "newest version that every member has executed", lambda status: status.stable_version
    ),
    "member_open_snapshots": Reading(
        "snapshots that clients have open", lambda status: status.open_snapshots
    ),
    "certification_info_items": Reading(
        "items that certification knows the last writer of",
        lambda status: status.certification_info_items,
    ),
    "relay_queue_transactions": Reading(
        "remote transactions that are not visible yet", lambda status: status.relay_queue_length
    ),
    "relay_queue_bytes": Reading("bytes of their changes", lambda status: status.relay_queue_bytes),
    "log_read_sequence": Reading(
        "the log's last message that was read", lambda status: status.log_sequence
    ),
    "log_publishing_messages": Reading(
        "messages on their way to the log", lambda status: status.publishing_messages
    ),
    "log_unacknowledged_seconds": Reading(
        "age of the oldest message that the log has not acknowledged",
        lambda status: status.log_unacknowledged_ms / 1e3,
    ),
    "log_replicas": Reading("servers that hold the log", lambda status: status.log_replicas),
    "log_has_leader": Reading(
        "whether the log's servers have a leader", lambda status: bool(status.log.leader)
    ),
    "log_servers_current": Reading(
        "servers that have all of the log",
        lambda status: sum(each.state == LOG_SERVER_STATE_CURRENT for each in status.log.servers),
    ),
    "log_acknowledged_seconds": Reading(
        "time since the log took a message of this member",
        lambda status: status.log.acknowledged_ms / 1e3,
    ),
    "log_durable": Reading(
        "whether all of them sync every write", lambda status: status.log_durable
    ),
    "binary_log_files": Reading("files of the binary log", lambda status: status.binary_log_files),
    "binary_log_bytes": Reading("their bytes", lambda status: status.binary_log_bytes),
    "certification_log_waiting_rows": Reading(
        "rows of the certification log that wait for a file",
        lambda status: status.certification_log_waiting_rows,
    ),
    "certification_log_waiting_bytes": Reading(
        "what they take in the store", lambda status: status.certification_log_waiting_bytes
    ),
    "certification_log_waiting_bytes_max": Reading(
        "how much they may take before they are given up",
        lambda status: status.certification_log_waiting_bytes_max,
    ),
    "certification_log_failing": Reading(
        "whether the last file of the certification log could not be written",
        lambda status: bool(status.certification_log_error),
    ),
    "flow_control_lag_transactions": Reading(
        "transactions that the slowest member has not applied", lambda status: status.slowest_lag
    ),
    "recovery_copied_bytes": Reading(
        "bytes of a donor's state that are copied", lambda status: status.recovery.bytes_done
    ),
    "recovery_total_bytes": Reading(
        "bytes that the donor's state has", lambda status: status.recovery.bytes_total
    ),
}
MEMBER_COUNTERS: Mapping[str, Reading] = {
    "member_local_transactions": Reading(
        "transactions that this member's clients committed",
        lambda status: status.transactions_local,
    ),
    "member_applied_transactions": Reading(
        "transactions that the applier has made visible",
        lambda status: status.transactions_applied,
    ),
    "log_skipped_messages": Reading(
        "messages of the log that were no valid message of a member",
        lambda status: status.skipped_messages,
    ),
    "member_cpu_seconds": Reading(
        "processor time of this process", lambda status: status.cpu_seconds
    ),
    "binary_log_transactions": Reading(
        "transactions that the binary log took", lambda status: status.binlog_commits
    ),
    "certification_log_written_rows": Reading(
        "rows in the files of the certification log that this process has written",
        lambda status: status.certification_log_written_rows,
    ),
    "flow_control_held_seconds": Reading(
        "time that transactions waited for the slowest member",
        lambda status: status.flow_control_held_ms / 1000,
    ),
    "binary_log_commit_groups": Reading(
        "groups that they were committed in", lambda status: status.binlog_group_commits
    ),
}
VERDICTS: Mapping[str, Callable[[MemberStatus], float]] = {
    "certified": lambda status: status.run_verdicts.certified,
    "conflict": lambda status: status.run_verdicts.conflict,
    "too_old": lambda status: status.run_verdicts.too_old,
    "refused": lambda status: status.run_verdicts.refused,
}
"""Of this run: a counter that went on from a store would jump, or go back after a crash."""


class MemberCollector(Collector):
    """The metrics of one member; the applier's beside it are an `ApplierCollector`'s."""

    def __init__(self, observe: Callable[[], GroupStatus | None]) -> None:
        self._observe = observe

    def collect(self) -> Iterator[Metric]:
        """Yields every metric; none while the member is starting."""
        group = self._observe()
        if group is None:
            return
        status = group.observer
        yield GaugeMetricFamily(
            "groupcert_group_view_members", "members of the view", value=len(group.members)
        )
        yield GaugeMetricFamily(
            "groupcert_group_suspected_members",
            "members of the view that were silent for too long",
            value=sum(each.suspected for each in group.members),
        )
        yield GaugeMetricFamily(
            "groupcert_group_departed_members",
            "members that left or were expelled, and are not forgotten",
            value=len(group.departed),
        )
        yield _problems(group)
        yield GaugeMetricFamily(
            "groupcert_member_takes_transactions",
            "whether the group's mode lets this member write",
            value=float(group.primary in ("", status.name)),
        )
        yield CounterMetricFamily(
            "groupcert_group_views", "views that the group has had", value=group.view_id
        )
        states = GaugeMetricFamily(
            "groupcert_member_state", "1 for the state that this member is in", labels=["state"]
        )
        for name, number in MemberState.items()[1:]:
            state = name.removeprefix("MEMBER_STATE_")
            states.add_metric([state], float(number == status.state))
        yield states
        for name, reading in MEMBER_GAUGES.items():
            yield GaugeMetricFamily(f"groupcert_{name}", reading.text, reading.value(status))
        for name, reading in MEMBER_COUNTERS.items():
            yield CounterMetricFamily(f"groupcert_{name}", reading.text, reading.value(status))
        verdicts = CounterMetricFamily(
            "groupcert_certification_transactions",
            "transactions that were certified here",
            labels=["verdict"],
        )
        for verdict, value in VERDICTS.items():
            verdicts.add_metric([verdict], value(status))
        yield verdicts
        yield from _stages(status)


def _problems(group: GroupStatus) -> Metric:
    """What `groupcert status` would exit with 1 for, as far as this member sees it."""
    problems = GaugeMetricFamily(
        "groupcert_problems", "what is wrong, as this member sees it", labels=["kind"]
    )
    found = Counter(problem.kind for problem in problems_of(group))
    for kind in ProblemKind:
        if kind is not ProblemKind.MEMBER_UNREACHABLE:
            problems.add_metric([kind.value], found[kind])
    return problems


def _stages(status: MemberStatus) -> Iterator[Metric]:
    """Where the time of this member's own commits went."""
    seconds = CounterMetricFamily(
        "groupcert_commit_stage_seconds", "time that own commits spent", labels=["stage"]
    )
    commits = CounterMetricFamily(
        "groupcert_commit_stage_transactions", "own commits that passed", labels=["stage"]
    )
    for stage in status.stages:
        seconds.add_metric([stage.name], stage.total_us / 1e6)
        commits.add_metric([stage.name], stage.count)
    yield seconds
    yield commits


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


def serve_metrics(address: str, *collectors: Collector) -> Callable[[], None]:
    """Serves them over HTTP at `host:port`, from a thread of its own; returns what ends that.

    Raises PortTaken: somebody else serves there.
    """
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
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
