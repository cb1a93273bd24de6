"""Opens what a run works with, on its store: in one order, and closed in the reverse one."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Protocol

from ...applier.engine.applier import Applier, ApplierOptions, ApplierStatus
from ...applier.queue.relay_group import RelayEntry
from ...applier.queue.relay_queue import RelayQueue
from ...applier.queue.target_progress import Checkpoint, DurabilityFlusher
from ...applier.schemes.logical_clock import LogicalClock
from ...applier.targets.rocksdb import RocksDbTarget, is_large
from ...certifier.errors import DiskFull, InvalidSetting
from ...certifier.history.schema import Cursor
from ...certifier.storage.store import Family, Store, StoreIdentity
from ..binary_log.stored_log import BinaryLog, BinaryLogOptions
from ..certification_log.outbox import KeptHistory, Outbox
from ..core.commit_wait import CommitWait
from ..core.log_records import GroupSettings, RowDigests
from ..core.member import Member
from ..core.member_options import MemberOptions
from ..core.noted_decisions import Decisions
from ..core.views import FORMAT_VERSION, MemberState, ViewMember
from ..large_transactions.fragment_store import FragmentStore
from ..large_transactions.rows_maker import RowsMaker
from ..settings.member import MemberConfig
from ..wire.row_changes import changed_keys, decode_changes, decode_puts
from .no_rows import NoRows
from .row_comparison import BYTES_PER_SECOND, RowComparison
from .row_store import OpenRows, RowsServer, StoredRows
from .snapshots import Snapshots
from .state_store import LOG_IDENTITY_KEY

ROWS_AT_SERVER_KEY = b"rows at server"
"""Is there in a store without rows: a PostgreSQL server keeps them."""
NO_ROWS_KEY = b"no rows"
"""Is there in the store of a member that keeps none."""
JOB_TRANSACTIONS_MAX = 64
"""Transactions of a job: waking a worker costs as much as a few executions on the embedded
store."""
FLUSH_PERIOD_MS = 200
"""Milliseconds between two flushes of the store. No client waits for them, as the log has its
commit on disk; only collections follow them, and more of them slow down the log server's own."""
STOP_SECONDS = 10.0
LOG_STOP_SECONDS = 20.0
"""Seconds for writing what the certification log lacks; see also the time that
`deploy/compose.yaml` gives."""


class Events(Protocol):
    """What the parts tell the run that they belong to, on threads of their own."""

    @property
    def committed_version(self) -> int:
        """The newest version that is visible."""

    def on_committed(self, version: int, position: int, /) -> None:
        """Takes the newest version that is visible, and its position."""

    def on_durable(self, version: int, /) -> None:
        """Takes the version up to which everything is on disk."""

    def on_written(self, cursor: Cursor, /) -> None:
        """Takes how far the certification log has files."""

    def on_digested(self, digests: RowDigests, /) -> None:
        """Takes the digests of the member's rows for a comparison."""

    def give_up(self, error: Exception, /) -> None:
        """Ends the run: a part cannot go on."""

    def save(self) -> None:
        """Stores the state: the applier has stopped, and the store is still open."""


class StoreParts:
    """The parts that need nothing but the store: a process and a simulation have the same."""

    def __init__(
        self, store: Store, config: MemberConfig, member: Member, *, at_server: bool = False
    ) -> None:
        """Opens them; `at_server`: a server has the rows, not the store."""
        self.store = store
        self._member = member
        kept = config.binary_log_retention_bytes if at_server else 0
        self.relay_queue = RelayQueue(
            store, bytes_max=config.relay_queue_bytes_max, kept_bytes_max=kept
        )
        self.binary_log: BinaryLog | None = None
        if config.binary_log and not at_server:
            rows = RocksDbTarget(store, decode_changes).checkpoint() or Checkpoint()
            self.binary_log = BinaryLog(store, rows, binary_log_options(config))
        self.fragments = FragmentStore(store)
        keeps_rows = config.rows == "kept"
        self.rows_maker = RowsMaker(store, self.fragments) if keeps_rows else None

    def target(self, now_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> RocksDbTarget:
        """Returns the rows of the store."""
        assert self.rows_maker is not None, "a store without rows"
        return RocksDbTarget(
            self.store,
            decode_changes,
            self.relay_queue,
            record_history=self._member.decisions.is_on,
            on_commit=self.binary_log.append if self.binary_log else self.fragments.discard,
            decode_puts=decode_puts,
            decode_large=self.fragments.rows,
            make_files=self.rows_maker.make,
            now_us=now_us,
        )


class OpenParts(StoreParts):
    """All parts of one run of a process, with their threads; `opened` closes them, even if one
    fails to open.
    """

    def __init__(
        self,
        config: MemberConfig,
        opened: ExitStack,
        events: Events,
        member: Member,
        server: RowsServer | None,
    ) -> None:
        """Opens them; `server` keeps the rows; None: the store does."""
        store, self.history_writer = open_store(config, opened, events)
        note_place_of_rows(store, config, at_server=server is not None)
        super().__init__(store, config, member, at_server=server is not None)
        self.outbox = self.history_writer.outbox if self.history_writer else None
        self.flusher = DurabilityFlusher(
            store, events.on_durable, events.give_up, period_ms=FLUSH_PERIOD_MS
        )
        opened.callback(self.flusher.stop, STOP_SECONDS)
        self.rows: OpenRows
        if server:
            self.rows = server.rows(events, self.fragments)
        elif config.rows == "none":
            self.rows = NoRows(member, events, self.flusher)
        else:
            self.rows = ProcessRows(self.target(), config, member, events, self.flusher)
        if server and config.binary_log:
            at_server = self.rows.checkpoint() or Checkpoint()
            # Fragments of large transactions are the relay queue's, for other servers, too.
            options = replace(binary_log_options(config), keeps_fragments=False)
            self.binary_log = BinaryLog.following(store, at_server, options)
        elif server:
            BinaryLog.stop_following(store)
        opened.callback(self.rows.close)
        if self.rows_maker:
            opened.callback(self.rows_maker.stop)
        self.snapshots = Snapshots(
            self.rows.open_snapshot,
            member.held,
            lease_ms=config.snapshot_lease_ms,
            snapshots_max=config.snapshots_max,
            first_id=secrets.randbits(62),
        )
        opened.callback(self.snapshots.close_all)
        opened.callback(unless_full, events.save)
        opened.callback(self.rows.stop, STOP_SECONDS)

    def start(self) -> None:
        """Executes entries, makes files of rows that come in fragments, and writes the
        certification log.
        """
        self.rows.start()
        if self.rows_maker:
            self.rows_maker.start()
        if self.history_writer:
            self.history_writer.start()


class ProcessRows(StoredRows):
    """Rows in the store of a process: an applier with worker threads executes entries."""

    def __init__(
        self,
        target: RocksDbTarget,
        config: MemberConfig,
        member: Member,
        events: Events,
        flusher: DurabilityFlusher,
    ) -> None:
        self.applier = Applier(
            target,
            LogicalClock(job_transactions_max=JOB_TRANSACTIONS_MAX),
            config.workers,
            on_committed=events.on_committed,
            on_error=events.give_up,
            options=ApplierOptions(workers_hold_jobs=False, is_slow=is_large),
        )
        comparison = RowComparison(
            target.open_snapshot,
            # A member that does not serve has nothing to be held up.
            lambda: BYTES_PER_SECOND if member.state is MemberState.ONLINE else 0,
            events.on_digested,
            events.give_up,
        )
        super().__init__(target, self.applier, comparison)
        self._comparison = comparison
        wait = CommitWait(config.binlog_commit_wait_count, config.binlog_commit_wait_usec)
        self._appender = Appender(wait, self.applier.append, events.give_up)
        self._flusher = flusher

    @property
    def comparison(self) -> RowComparison:
        """What digests the store's rows, on a thread of its own."""
        return self._comparison

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """Passes entries to the applier, or only those before them, as `CommitWait` allows."""
        self._appender.add(entries)

    def expect_comparison(self, position: int) -> None:
        """Has the rows taken at `position`, behind which no group commit reaches."""
        self.applier.end_group_after(position)
        self.comparison.expect(position)

    def flush_up_to(self, version: int) -> None:
        """Has the store flushed once `version` is visible."""
        self._flusher.request(version)

    def status(self) -> ApplierStatus:
        """Returns the applier's."""
        return self.applier.status()

    def server_status(self) -> None:
        """Returns None: the store keeps the rows."""

    def relay_first_version(self) -> int:
        """Returns 0: a copy has the rows."""
        return 0

    def stop(self, seconds: float) -> None:
        """Passes nothing on any more, and stops the applier."""
        self._appender.close()
        self.applier.stop(seconds)

    def close(self) -> None:
        """Ends the comparison, then the target."""
        self._comparison.stop()
        self.target.close()


class Appender:
    """Passes entries from one member's state machine to its applier, on the event loop's thread.

    With `binlog_commit_wait_count` it holds them back until that many have arrived or
    `binlog_commit_wait_usec` is over, so that they form one group commit. A timer passes on entries
    that no others joined, so none is forgotten.
    """

    def __init__(
        self,
        wait: CommitWait,
        append: Callable[[Sequence[RelayEntry]], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Passes entries to `append`; calls `on_error` with an error raised by the timer."""
        self._wait = wait
        self._append = append
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, entries: Sequence[RelayEntry]) -> None:
        """Passes entries on, or only those before them, as `CommitWait` allows."""
        self._hand_over(self._wait.add(entries, self._now_us()))

    def close(self) -> None:
        """Passes nothing on any more."""
        self._closed = True

    def _hand_over(self, entries: Sequence[RelayEntry]) -> None:
        if entries:
            self._append(entries)
        deadline_us = self._wait.deadline_us
        if deadline_us is not None and self._timer is None:
            delay_seconds = (deadline_us - self._now_us()) / 1e6
            self._timer = self._loop.call_later(delay_seconds, self._end_wait)

    def _end_wait(self) -> None:
        """Passes on the entries whose time is up; those added after the timer was set wait on."""
        self._timer = None
        if self._closed:
            return
        deadline_us = self._wait.deadline_us
        due = deadline_us is not None and deadline_us <= self._now_us()
        try:
            self._hand_over(self._wait.release() if due else ())
        except Exception as error:
            self._on_error(error)

    def _now_us(self) -> int:
        return int(self._loop.time() * 1e6)


def open_store(
    config: MemberConfig, opened: ExitStack, events: Events
) -> tuple[Store, KeptHistory | None]:
    """Opens a member's store, and the writer of its certification log, if it has one."""
    store = Store(config.data_folder, StoreIdentity(group=config.group, member=config.member))
    opened.callback(unless_full, store.close)
    writer = writer_of(config, store, events)
    if writer:
        opened.callback(writer.stop, LOG_STOP_SECONDS)
    return store, writer


def note_place_of_rows(store: Store, config: MemberConfig, *, at_server: bool) -> None:
    """Notes in a store where the rows are: in it, at a server or nowhere.

    Raises:
        InvalidSetting: The data folder was begun with another setting.
    """
    before = config.rows
    if store.get(Family.META, NO_ROWS_KEY) is not None:
        before = "none"
    elif store.get(Family.META, LOG_IDENTITY_KEY) is not None:
        before = "kept"
    if config.rows != before:
        expected = (
            f'"{before}", as this data folder was begun: keep it so, or start the member with '
            "another, empty folder, into which it copies what it needs"
        )
        raise InvalidSetting(name="rows", value=config.rows, expected=expected)
    if not at_server and store.get(Family.META, ROWS_AT_SERVER_KEY) is not None:
        expected = "the server that keeps the rows of this data folder, which has none"
        raise InvalidSetting(name="postgresql", value="", expected=expected)
    if at_server or config.rows == "none":
        batch = store.batch()
        batch.put(Family.META, ROWS_AT_SERVER_KEY if at_server else NO_ROWS_KEY, b"")
        store.write(batch)


def unless_full(write: Callable[[], None]) -> None:
    """Calls `write`, and ignores DiskFull: what cannot be written is in the log."""
    with suppress(DiskFull):
        write()


def binary_log_options(config: MemberConfig) -> BinaryLogOptions:
    """Returns the sizes at which the binary log begins a file and removes old ones."""
    return BinaryLogOptions(
        file_bytes_max=config.binary_log_file_bytes_max,
        retention_bytes=config.binary_log_retention_bytes,
    )


def member_options(config: MemberConfig) -> MemberOptions:
    """Returns a member's options for a new run, with an incarnation of its own."""
    return MemberOptions(
        me=ViewMember(
            name=config.member,
            incarnation=secrets.randbits(64),
            address=config.address,
            weight=config.weight,
            format_version=FORMAT_VERSION,
            release=version("groupcert"),
            without_rows=config.rows == "none",
        ),
        settings=group_settings(config),
        stable_period_ms=config.stable_set_period_ms,
        suspicion_ms=config.suspicion_timeout_ms,
        expel_ms=config.member_expel_timeout_ms,
        unreachable_ms=config.unreachable_majority_timeout_ms,
    )


def decisions_of(config: MemberConfig) -> Decisions:
    """Returns the `Decisions` that notes a member's decisions, if it keeps a certification log."""
    is_on = config.certification_log is not None
    keys_of = changed_keys if config.certification_log_keys else None
    return Decisions(config.member, is_on=is_on, keys_of=keys_of)


def writer_of(config: MemberConfig, store: Store, events: Events) -> KeptHistory | None:
    """Returns the writer of a member's certification log, if it has one; `start` starts it."""
    if config.certification_log is None:
        return None
    outbox = Outbox(
        store,
        config.member,
        bytes_max=config.certification_log_waiting_bytes_max,
        allows_keys=config.certification_log_keys,
    )
    if not config.writes_certification_log:
        return KeptHistory(outbox, config.certification_log)
    # A member that writes no files does without the memory that Parquet takes.
    from ..certification_log.writer import (
        CertificationLogOptions,
        CertificationLogWriter,
    )

    options = CertificationLogOptions(
        folder=config.certification_log,
        file_bytes=config.certification_log_file_bytes,
        file_seconds=config.certification_log_file_seconds,
    )
    return CertificationLogWriter(
        outbox, options, lambda: events.committed_version, events.on_written, events.give_up
    )


def group_settings(config: MemberConfig) -> GroupSettings:
    """Returns the settings on which the group must agree, as this member has them configured."""
    return GroupSettings(
        settings_version=1,
        group=config.group,
        group_uuid=str(config.group_uuid),
        gtid_assignment_block_size=config.gtid_assignment_block_size,
        gc_window=config.gc_window,
        write_set_items_max=config.write_set_items_max,
        outcomes_max=config.outcomes_max,
        flow_control_lag_max=config.flow_control_lag_max,
        single_primary=config.single_primary,
        members_allowed=config.members_allowed,
        postgresql_tables=config.postgresql_tables,
    )
