"""Runs `groupcert replica` as a process: target and scheme by name, status and metrics, its end.

The rules it keeps: every error in the settings is reported before anything is written; the driver
of a server is imported only if that server is named.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import structlog

from ...applier.engine.applier import ApplierOptions
from ...applier.engine.until import (
    AfterGaps,
    AfterGtids,
    AfterPosition,
    AfterView,
    BeforeGtids,
    Until,
)
from ...applier.errors import TABLE_CHANGED, TransientFailure
from ...applier.mysql_logs.prepared_payload import prepared_step
from ...applier.mysql_logs.statement_payload import PayloadStatement, statements_of
from ...applier.mysql_servers.server_url import ServerUrl
from ...applier.mysql_servers.source_errors import SourceLost
from ...applier.queue.job import CommitGroup, Job
from ...applier.queue.relay_group import RelayEntry
from ...applier.queue.target_progress import Checkpoint, DurabilityFlusher, TargetProgress
from ...applier.schemes import Scheme
from ...applier.schemes.catalogue import scheme
from ...applier.targets import Target
from ...applier.targets.first_copy import CopyProgress, CopyRecord, copy_tables
from ...applier.targets.rocksdb import RocksDbTarget, RowChanges
from ...applier.targets.source_documents import (
    DocumentsCopy,
    changes_of_definitions,
    changes_of_step,
    keeping,
    place_of,
)
from ...applier.targets.sql import SqlTarget
from ...applier.targets.sql_copy import SqlCopy
from ...applier.targets.sql_server import SqlServer
from ...certifier.errors import InvalidSetting
from ...certifier.gtid_set import GtidSet
from ...certifier.storage.store import Family, Store, StoreIdentity
from ..console.paths import serve_metrics
from ..errors.postgresql_servers import RowsAtServer
from ..host.loop_thread import LoopThread
from ..host.private_files import keep_private
from ..services.applier_service import ApplierMessage
from ..services.metrics import StatusCollector
from ..settings.replica import EMBEDDED, ReplicaConfig
from ..wire.applier_status import applier_status
from .follower import Replica, now_us
from .replica_reads import ReplicaReads
from .replica_server import serving_replica
from .server_sources import ServerSources, changes_between
from .source_rows import GroupRows, ServerRows, SourceRows
from .sources import ReplicaSources, Sources

CLOSE_SECONDS = 10.0
SWITCH_SECONDS = 0.0005
"""Seconds after which a thread that computes lets another one in."""
COPY_REPORT_SECONDS = 5.0
SOURCE_PAUSE_SECONDS = 2.0
COPY_THREADS = 4
"""Threads of a first copy where there are no workers."""
SQL_JOB_TRANSACTIONS_MAX = 64
SQL_JOB_TRANSACTIONS_MIN = 4
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
    # The thread that translates computes, and the one that executes mostly waits for its server: it
    # is not to wait for the other thread after that, too.
    sys.setswitchinterval(SWITCH_SECONDS)
    sources, rows = _source(config)
    if isinstance(rows, ServerRows):
        _once_it_answers(partial(copy_first, config, rows))
    with ExitStack() as stack:
        loop = stack.enter_context(LoopThread())
        reads = ReplicaReads(
            config.replica,
            loop,
            lambda: sources.connected or _first_source(config),
            None if _is_embedded(config) else RowsAtServer(server=_without_user(config.target)),
        )
        replica = Replica(
            config.replica,
            sources,
            opens_target(
                config.target,
                rows,
                replica=config.replica,
                workers=config.workers,
                two_phase=config.scheme == "rows",
                reads=reads,
            ),
            lambda: replica_scheme(config),
            config.workers,
            applier_options(config),
            make_until=lambda checkpoint: until(config, checkpoint),
            delay_s=config.delay_s,
            pending_jobs_size_max=config.pending_jobs_size_max,
            skipped=GtidSet.parse(config.skip_gtids or ""),
            retry_s=config.retry_s if config.on_error == "stay" else 0,
        )

        def observe() -> ApplierMessage | None:
            return _observe(config, replica, sources)

        for number in (signal.SIGTERM, signal.SIGINT):
            # In a thread: the interrupted code may hold a lock that `stop` takes.
            signal.signal(number, lambda *_: Thread(target=replica.stop).start())
        if config.address:
            stack.enter_context(
                serving_replica(loop, config.address, observe, reads, config.tls, config.access)
            )
        if config.metrics_address:
            collector = StatusCollector(observe)
            stack.callback(serve_metrics(config.metrics_address, collector))
        replica.run()
    return 0


def _once_it_answers(action: Callable[[], None]) -> None:
    """Does what needs the source; again and again while that does not answer, as when it is lost
    later.
    """
    while True:
        try:
            return action()
        except SourceLost as error:
            log.warning("source_unavailable", source=error.source, text=str(error))
        sleep(SOURCE_PAUSE_SECONDS)


def _source(config: ReplicaConfig) -> tuple[Sources, SourceRows]:
    """Returns the sources of the replica, and the way to read their rows."""
    if not config.follows_server:
        members = ReplicaSources(
            config.sources, config.replica, config.credentials(), config.transaction_bytes_max
        )
        return members, GroupRows(config.mapping, scheme_name(config))
    rows = ServerRows(config.sources, scheme=scheme_name(config), replica=config.replica)
    servers = ServerSources(
        config.sources,
        config.replica,
        keys=rows.history.keys,
        transaction_bytes_max=config.transaction_bytes_max,
        compares_rows=bool(config.workers) and _compares_rows(config),
    )
    return servers, rows


def copy_first(config: ReplicaConfig, rows: ServerRows) -> None:
    """Copies the source's tables to a target that has nothing yet, if that is asked for.

    Raises:
        UnsuitableTarget: a copy was begun and not finished, and none is asked for now; or one is,
            and a table has rows of its own.
    """
    with ExitStack() as stack:
        target: SqlCopy | DocumentsCopy
        if _is_embedded(config):
            folder = Path(config.target.removeprefix(EMBEDDED))
            store = stack.enter_context(open_store(folder, config.replica))
            target = DocumentsCopy(store, rows.catalogue(), logs_cascades=rows.logs_cascades)
        else:
            target = SqlCopy(
                sql_server(config.target, rows), rows.tables(config.target), config.replica
            )
            stack.callback(target.close)
        if not config.copy_first:
            target.check_not_begun()
        elif target.is_needed:
            snapshot = stack.enter_context(rows.snapshot(config.workers or COPY_THREADS))
            log.info("first_copy_begins", replica=config.replica, executed=str(snapshot.gtids))
            source = ServerSources(
                config.sources[:1],
                config.replica,
                transaction_bytes_max=config.transaction_bytes_max,
                compares_rows=False,
            )
            between = partial(changes_between, source)
            count = copy_tables(snapshot, target, between, _CopyReport(config.replica))
            log.info("first_copy_ended", replica=config.replica, rows=count)


class _CopyReport:
    """Logs how far a copy is, every few seconds, and what is kept of one that was cut off."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._said = monotonic()

    def say(self, progress: CopyProgress) -> None:
        """Logs the progress, if it is due."""
        if monotonic() - self._said > COPY_REPORT_SECONDS:
            self._said = monotonic()
            log.info("first_copy", replica=self._replica, **progress._asdict())

    def goes_on(self, record: CopyRecord) -> None:
        """Logs what is kept."""
        whole, gtids = sorted(record.whole), str(record.gtids)
        log.info("first_copy_goes_on", replica=self._replica, whole=whole, executed=gtids)

    def begins_again(self, cause: str) -> None:
        """Logs why nothing is."""
        log.warning("first_copy_begins_again", replica=self._replica, text=cause)


def opens_target(
    target: str,
    rows: SourceRows,
    *,
    replica: str,
    workers: int,
    two_phase: bool,
    reads: ReplicaReads | None = None,
) -> Callable[[], Target[Any]]:
    """Returns a function that opens the target, called again after a lost connection; `reads`
    serves the rows of an embedded one.

    Raises:
        InvalidSetting: there is no such kind of target.
        UnsuitableTarget: from the call, a mapping is missing or malformed, or the server or its
            tables are not fit.
    """
    kind, _, rest = target.partition(":")
    if kind == "rocksdb" and rest:
        return lambda: EmbeddedTarget(Path(rest), replica, rows, reads)
    server = sql_server(target, rows)
    return lambda: SqlTarget(
        server, rows.tables(target), replica=replica, workers=workers, two_phase=two_phase
    )


def sql_server(target: str, rows: SourceRows) -> SqlServer:
    """Returns an SQL server by its address, for rows of a source. Raises InvalidSetting if there is
    no such kind.
    """
    kind = target.partition(":")[0]
    if kind in ("postgresql", "postgres"):
        from ...applier.targets.postgresql import PostgreSqlServer

        return PostgreSqlServer(target, defers_foreign_keys=rows.logs_cascades)
    if kind in ("mysql", "mariadb"):
        from ...applier.targets.mysql import MySqlServer

        return MySqlServer(target, checks_foreign_keys=not rows.logs_cascades)
    raise InvalidSetting(
        name="target",
        value=target,
        expected="rocksdb:FOLDER, postgresql://user@host/database or mysql://user@host/database",
    )


def open_store(folder: Path, replica: str) -> Store:
    """Opens the store of a replica."""
    return Store(folder, StoreIdentity(group="replica", member=replica))


OF_GROUP = GroupRows(None)


class EmbeddedTarget(RocksDbTarget):
    """A store of the replica's own, flushed in the background."""

    def __init__(
        self,
        folder: Path,
        replica: str,
        rows: SourceRows = OF_GROUP,
        reads: ReplicaReads | None = None,
    ) -> None:
        """Opens the store, and serves it by `reads`."""
        self.store = open_store(folder, replica)
        try:
            self._rows, kept = rows.documents(place_of(self.store))
            if kept:
                batch = self.store.batch()
                batch.apply(Family.DATA, keeping(kept))
                self.store.write(batch)
        except BaseException:
            self.store.close()
            raise
        super().__init__(self.store, self._rows)
        self._error: Exception | None = None
        self._flusher = DurabilityFlusher(self.store, lambda _: None, self._note)
        self._reads = reads
        if reads:
            reads.open(self.open_snapshot, self.checkpoint())

    def execute(self, job: Job[RowChanges]) -> RowChanges:
        """Decodes the row changes of a job, which may be a step of an XA transaction, or a
        definition that its operator has seen to.
        """
        [entry, *_] = job.entries
        if statements := _seen_to(entry):
            return changes_of_definitions(statements, self.store)
        step = prepared_step(entry.payload)
        if step is None:
            return super().execute(job)
        changes = changes_of_step(step, entry.gtid, self.store, self._rows)
        if (part := job.part) is not None:
            changes = {key: value for key, value in changes.items() if part.takes(key[1:])}
        return changes

    def commit(self, group: CommitGroup[RowChanges], progress: TargetProgress) -> None:
        """Commits, and asks for a flush.

        Raises:
            DiskFull: nothing of it was written, or an earlier flush has failed.
            TransientFailure: all is committed, and tables are others now.
        """
        if self._error:
            raise self._error
        super().commit(group, progress)
        self._flusher.request(group.tick)
        if self._reads:
            self._reads.note(progress.checkpoint)
        if any(job.execution and _seen_to(job.entries[0]) for job in group.jobs):
            raise TransientFailure(kind=TABLE_CHANGED, text="its tables are looked up again")

    def close(self) -> None:
        """Ends all reads; flushes and closes the store."""
        if self._reads:
            self._reads.close()
        self._flusher.stop(CLOSE_SECONDS)
        self.store.close()

    def _note(self, error: Exception) -> None:
        self._error = error


def _seen_to(entry: RelayEntry) -> Sequence[PayloadStatement]:
    return [each for each in statements_of(entry.payload) if each.is_skipped]


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
    """Returns the applier's options."""
    return ApplierOptions(
        transaction_retries=config.transaction_retries,
        scheme=scheme_name(config) if config.workers else ALONE,
    )


def _compares_rows(config: ReplicaConfig) -> bool:
    """Returns whether the scheme looks at write sets."""
    is_jobs = config.scheme == "jobs" and config.conflicts not in ("ignore", "ordered")
    return is_jobs or config.scheme == "rows"


def _first_source(config: ReplicaConfig) -> str:
    first = config.sources[0]
    return str(ServerUrl.parse(first)) if config.follows_server else first


def _without_user(url: str) -> str:
    """Returns an address without user and password."""
    return url.partition("@")[2] or url


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


def _observe(config: ReplicaConfig, replica: Replica, sources: Sources) -> ApplierMessage | None:
    if replica.is_starting:
        return None
    status = replica.status()
    lag_seconds, behind = replica.lag(status, now_us())
    return applier_status(
        status,
        channel=config.replica,
        source=sources.connected or "not connected",
        scheme=scheme_name(config) if config.workers else ALONE,
        consistency=replica.scheme.consistency.value,
        activity=replica.activity,
        lag_seconds=lag_seconds,
        behind_transactions=behind,
        last_recovery=replica.recovery,
        operator_skipped=replica.skipped,
    )
