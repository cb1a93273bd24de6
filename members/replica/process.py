"""Runs `groupcert replica` as a process: target and scheme by name, status and metrics, its end.

The rule it keeps: every error in the settings is reported before anything is written.
"""

import signal
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import structlog

from ...applier.engine.applier import ApplierOptions
from ...applier.engine.coordinator import CoordinatorOptions
from ...applier.engine.until import (
    AfterGaps,
    AfterGtids,
    AfterPosition,
    AfterView,
    BeforeGtids,
    Until,
)
from ...applier.queue.target_progress import Checkpoint
from ...applier.schemes import Scheme
from ...applier.schemes.catalogue import scheme
from ...certifier.gtid_set import GtidSet
from ..console.paths import serve_metrics
from ..host.private_files import keep_private
from ..services.applier import ApplierMessage, serving_status
from ..services.metrics import StatusCollector
from ..settings.replica import ReplicaConfig
from ..wire.applier_status import applier_status
from .follower import Replica, now_us
from .sources import ReplicaSources
from .targets import opens_target

SQL_JOB_TRANSACTIONS_MAX = 64
SQL_JOB_TRANSACTIONS_MIN = 4
EMBEDDED = "rocksdb:"
ALONE = "no workers"
"""Stands for the scheme of a replica without workers: it fills no gaps, because it has no scheme
that knows why they are there."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def run_replica(config: ReplicaConfig) -> int:
    """Runs a replica until SIGTERM or SIGINT, or until its condition is met; returns the exit code.

    Raises:
        GroupcertError: It cannot start, or cannot go on; what it did is in its target.
    """
    folder = config.target.removeprefix(EMBEDDED) if _is_embedded(config) else ""
    keep_private(
        [Path(folder)] if folder else [],
        lambda text: log.warning("folder_exposed", replica=config.replica, text=text),
    )
    sources = ReplicaSources(
        config.sources, config.replica, config.credentials(), config.transaction_bytes_max
    )
    with ExitStack() as stack:
        replica = Replica(
            config.replica,
            sources,
            opens_target(
                config.target,
                config.mapping,
                replica=config.replica,
                workers=config.workers,
                two_phase=config.scheme == "rows",
            ),
            lambda: replica_scheme(config),
            config.workers,
            applier_options(config),
            make_until=lambda checkpoint: until(config, checkpoint),
            delay_s=config.delay_s,
            pending_jobs_size_max=config.pending_jobs_size_max,
        )

        def observe() -> ApplierMessage | None:
            return _observe(config, replica, sources)

        for number in (signal.SIGTERM, signal.SIGINT):
            # In a thread: the interrupted code may hold a lock that `stop` takes.
            signal.signal(number, lambda *_: Thread(target=replica.stop).start())
        if config.address:
            stack.enter_context(serving_status(config.address, observe, config.tls, config.access))
        if config.metrics_address:
            collector = StatusCollector(observe)
            stack.callback(serve_metrics(config.metrics_address, collector))
        replica.run()
    return 0


def replica_scheme(config: ReplicaConfig) -> Scheme:
    """Returns a new scheme of a replica. On an SQL server, each commit of which waits for a disk,
    the logical clock puts what waits together: it has few transactions commit alone, unless none
    but one may start. A replica without a backlog commits one transaction at a time.
    """
    is_plain = config.scheme == "logical-clock" and config.job_transactions_max is None
    if is_plain and not _is_embedded(config):
        return sql_logical_clock(config.policy, config.preserve_commit_order)
    return scheme(
        config.scheme,
        conflicts=config.conflicts,
        policy=config.policy,
        job_transactions_max=config.job_transactions_max,
        preserve_commit_order=config.preserve_commit_order,
    )


def sql_logical_clock(
    policy: str | None = None, preserve_commit_order: bool | None = None
) -> Scheme:
    """Returns the logical clock with the defaults for an SQL server."""
    return scheme(
        "logical-clock",
        policy=policy,
        job_transactions_max=SQL_JOB_TRANSACTIONS_MAX,
        job_transactions_min=SQL_JOB_TRANSACTIONS_MIN,
        preserve_commit_order=preserve_commit_order,
    )


def applier_options(config: ReplicaConfig) -> ApplierOptions:
    """Returns the applier's options. Alone, the coordinator commits one transaction at a time if
    each needs a commit of a server, else as many as there are.
    """
    has_groups = _is_embedded(config) or config.workers
    groups_max = CoordinatorOptions().group_transactions_max if has_groups else 1
    return ApplierOptions(
        coordinator=CoordinatorOptions(group_transactions_max=groups_max),
        transaction_retries=config.transaction_retries,
        scheme=scheme_name(config) if config.workers else ALONE,
    )


def _is_embedded(config: ReplicaConfig) -> bool:
    return config.target.startswith(EMBEDDED)


def scheme_name(config: ReplicaConfig) -> str:
    """Returns the scheme with its variant: `jobs ignore`."""
    return " ".join(filter(None, (config.scheme, config.conflicts, config.policy)))


def until(config: ReplicaConfig, checkpoint: Checkpoint) -> Until | None:
    """Returns the condition that ends the replica, if there is one."""
    if config.until_after_gtids:
        return AfterGtids(GtidSet.parse(config.until_after_gtids), checkpoint.gtid_executed)
    if config.until_before_gtids:
        return BeforeGtids(GtidSet.parse(config.until_before_gtids))
    if config.until_position:
        file, _, number = config.until_position.partition(":")
        return AfterPosition(int(file), int(number))
    if config.until_view:
        return AfterView(config.until_view)
    return AfterGaps(checkpoint) if config.until_after_gaps else None


def _observe(
    config: ReplicaConfig, replica: Replica, sources: ReplicaSources
) -> ApplierMessage | None:
    if replica.applier is None:
        return None
    status = replica.status()
    lag_seconds, behind = replica.lag(status, now_us())
    return applier_status(
        status,
        channel=config.replica,
        source=sources.connected or "not connected",
        scheme=scheme_name(config),
        consistency=replica.scheme.consistency.value,
        activity=replica.activity,
        lag_seconds=lag_seconds,
        behind_transactions=behind,
        last_recovery=replica.recovery,
    )
