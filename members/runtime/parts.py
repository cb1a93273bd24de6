"""The parts of a run that work on its store: opened in one order, closed in the reverse one."""

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from ...applier.engine.applier import Applier, ApplierOptions
from ...applier.queue.checkpoint import Checkpoint, DurabilityFlusher
from ...applier.queue.relay_queue import RelayQueue
from ...applier.schemes.logical_clock import LogicalClock
from ...applier.targets.rocksdb import RocksDbTarget, is_large
from ...certifier.history.schema import Cursor
from ...certifier.storage.store import Store, StoreIdentity
from ..binary_log.log import BinaryLog
from ..core.commit_wait import CommitWait
from ..core.log_records import RowDigests
from ..core.member import Member
from ..core.views import MemberState
from ..large_transactions.fragments import FragmentStore
from ..large_transactions.rows_files import RowsMaker
from ..settings.member import MemberConfig
from ..wire.row_changes import decode_changes, decode_puts
from .appender import Appender
from .endings import LOG_STOP_SECONDS, STOP_SECONDS, unless_full
from .options import binary_log_options, writer_of
from .row_comparison import BYTES_PER_SECOND, RowComparison
from .snapshots import Snapshots

JOB_TRANSACTIONS_MAX = 64
"""Transactions of a job: waking a worker costs as much as a few executions on the embedded
store."""
FLUSH_PERIOD_MS = 200
"""Milliseconds between two flushes of the store. No client waits for them, as the log has its
commit on disk; only collections follow them, and more of them slow down the log server's own."""


class Events(NamedTuple):
    """Callbacks of the parts: the applier and the flusher call them on threads of their own."""

    committed: Callable[[int, int], None]
    """A version is visible, and its position."""
    durable: Callable[[int], None]
    """Everything up to a version is on disk."""
    written: Callable[[Cursor], None]
    """The certification log has files up to a row."""
    failed: Callable[[Exception], None]
    """A part cannot go on, and so the run ends."""
    closing: Callable[[], None]
    """The applier has stopped, and the store is still open."""
    committed_version: Callable[[], int]
    """Returns the newest version that is visible."""
    digested: Callable[[RowDigests], None]
    """The member's rows are digested for a comparison."""


class Parts:
    """All parts of one run; `opened` closes them, even if one fails to open."""

    def __init__(
        self, config: MemberConfig, opened: ExitStack, events: Events, member: Member
    ) -> None:
        self.store = store = Store(
            config.data_folder, StoreIdentity(group=config.group, member=config.member)
        )
        opened.callback(unless_full, store.close)
        self.history_writer = writer_of(
            config, store, events.committed_version, events.written, events.failed
        )
        if self.history_writer:
            opened.callback(self.history_writer.stop, LOG_STOP_SECONDS)
        self.relay_queue = RelayQueue(store, bytes_max=config.relay_queue_bytes_max)
        self.binary_log: BinaryLog | None = None
        if config.binary_log:
            rows = RocksDbTarget(store, decode_changes).checkpoint() or Checkpoint()
            self.binary_log = BinaryLog(store, rows, binary_log_options(config))
        self.fragments = fragments = FragmentStore(store)
        self.rows_maker = RowsMaker(store, fragments)
        self.target = RocksDbTarget(
            store,
            decode_changes,
            self.relay_queue,
            record_history=member.decisions.is_on,
            on_commit=self.binary_log.append if self.binary_log else fragments.discard,
            decode_puts=decode_puts,
            decode_large=fragments.rows,
            make_files=self.rows_maker.make,
        )
        opened.callback(self.target.close)
        opened.callback(self.rows_maker.stop)
        self.snapshots = Snapshots(
            self.target.open_snapshot,
            member.held,
            lease_ms=config.snapshot_lease_ms,
            snapshots_max=config.snapshots_max,
            first_id=secrets.randbits(62),
        )
        opened.callback(self.snapshots.close_all)
        self.comparison = RowComparison(
            self.target.open_snapshot,
            # A member that does not serve has nothing to be held up.
            lambda: BYTES_PER_SECOND if member.state is MemberState.ONLINE else 0,
            events.digested,
            events.failed,
        )
        opened.callback(self.comparison.stop)
        self.flusher = DurabilityFlusher(
            store, events.durable, events.failed, period_ms=FLUSH_PERIOD_MS
        )
        opened.callback(self.flusher.stop, STOP_SECONDS)
        opened.callback(unless_full, events.closing)
        self.applier = Applier(
            self.target,
            LogicalClock(job_transactions_max=JOB_TRANSACTIONS_MAX),
            config.applier_workers,
            on_committed=events.committed,
            on_error=events.failed,
            options=ApplierOptions(workers_hold_jobs=False, is_slow=is_large),
        )
        opened.callback(self.applier.stop, STOP_SECONDS)
        wait = CommitWait(config.binlog_commit_wait_count, config.binlog_commit_wait_usec)
        self.appender = Appender(wait, self.applier.append, events.failed)
