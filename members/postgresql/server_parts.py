"""The parts of a run whose rows a PostgreSQL server keeps: its store has all else."""

from collections.abc import Sequence
from contextlib import ExitStack

from groupcert.v1.postgresql_pb2 import PostgresqlStatus

from ...applier.queue.relay_group import RelayEntry
from ...applier.queue.relay_queue import RelayQueue
from ...applier.queue.target_progress import DurabilityFlusher
from ...applier.targets.rocksdb import RowsSnapshot
from ...certifier.storage.store import Family
from ..core.commit_wait import CommitWait
from ..core.member import Member
from ..errors.postgresql_servers import RowsAtServer
from ..large_transactions.fragment_store import FragmentStore
from ..large_transactions.rows_maker import RowsMaker
from ..runtime.opening import (
    FLUSH_PERIOD_MS,
    ROWS_AT_SERVER_KEY,
    STOP_SECONDS,
    Appender,
    open_store,
    unless_full,
)
from ..runtime.runtime import MemberRuntime
from ..runtime.snapshots import Snapshots
from ..settings.member import MemberConfig
from .server import Server
from .server_applier import ServerApplier
from .server_rows import ServerComparison


class ServerParts:
    """The parts of a run whose rows a server keeps: the store has all else."""

    def __init__(
        self,
        server: Server,
        config: MemberConfig,
        opened: ExitStack,
        runtime: MemberRuntime,
        member: Member,
    ) -> None:
        store, self.history_writer = open_store(config, opened, runtime)
        self.store = store
        batch = store.batch()
        batch.put(Family.META, ROWS_AT_SERVER_KEY, b"")
        store.write(batch)
        self.outbox = self.history_writer.outbox if self.history_writer else None
        self.relay_queue = RelayQueue(
            store,
            bytes_max=config.relay_queue_bytes_max,
            kept_bytes_max=config.binary_log_retention_bytes,
        )
        self.binary_log = None
        self.fragments = FragmentStore(store)
        self.rows_maker = RowsMaker(store, self.fragments)
        self.snapshots = Snapshots(
            self._no_rows,
            member.held,
            lease_ms=config.snapshot_lease_ms,
            snapshots_max=config.snapshots_max,
        )
        self.comparison = ServerComparison(server.database, runtime)
        opened.callback(self.comparison.stop)
        self.flusher = DurabilityFlusher(
            store, runtime.on_durable, runtime.give_up, period_ms=FLUSH_PERIOD_MS
        )
        opened.callback(self.flusher.stop, STOP_SECONDS)
        opened.callback(unless_full, runtime.save)
        self.applier = self.target = ServerApplier(server, runtime, self.fragments, self.comparison)
        opened.callback(self.applier.stop)
        wait = CommitWait(config.binlog_commit_wait_count, config.binlog_commit_wait_usec)
        self.appender = Appender(wait, self.applier.append, runtime.give_up)

    def start(self) -> None:
        """Serves the server's backends, and writes the certification log."""
        self.applier.start()
        if self.history_writer:
            self.history_writer.start()

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """Passes entries to the applier."""
        self.applier.append(entries)

    def expect_comparison(self, position: int) -> None:
        """Has the rows taken at `position`, of which the applier has had nothing."""
        self.applier.take_rows_at(position)

    def check_readable(self, _member: str) -> None:
        """Raises RowsAtServer: clients read by SQL, which knows the types of what they read."""
        raise RowsAtServer(server=self.applier.name)

    def server_status(self) -> PostgresqlStatus:
        """Returns the numbers that `groupcert postgresql status` and metrics show."""
        return self.applier.server_status()

    def lasting(self, position: int) -> int:
        """Returns up to where the server has rows on disk."""
        return min(position, self.applier.durable_position)

    def flush_up_to(self, version: int) -> None:
        """Does nothing: `ServerApplier` looks what is on the server's disk again and again."""

    def _no_rows(self) -> RowsSnapshot:
        raise AssertionError("check_readable lets nobody read")


class RowsServer(Server):
    """A server, as what opens the parts of a run."""

    def parts(
        self, config: MemberConfig, opened: ExitStack, runtime: MemberRuntime, member: Member
    ) -> "ServerParts":
        """Opens what a run works with."""
        return ServerParts(self, config, opened, runtime, member)
