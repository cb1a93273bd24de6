"""The port to what keeps a member's rows: its own store, or a server.

The rule that each adapter keeps: what is visible is a prefix of the total order, and which one is
noted by the writes that make it visible. So a run begins behind that, whatever became of the
earlier one, and skips the entries that it is given once more.

Adapters: `StoredRows` has them in the member's RocksDB, `ServerApplier` in a PostgreSQL server,
`NoRows` nowhere. Certifier, view, outcomes and relay queue are in the member's store with all.
"""

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from ...applier.engine.applier import ApplierStatus
from ...applier.queue.relay_group import RelayEntry
from ...applier.queue.target_progress import Checkpoint
from ...applier.targets.rocksdb import RocksDbTarget, RowsSnapshot
from ...certifier.errors import NotServing
from ..large_transactions.fragment_store import FragmentStore
from .row_comparison import ComparedRow


class Compares(Protocol):
    """A comparison of rows, as a driver uses it."""

    def committed(self, position: int, /) -> None:
        """Takes the rows if this is where they are compared."""

    def forget(self, *, is_settled: bool) -> None:
        """Lets go of the rows if all members have equal ones."""


class ReadsCompared(Compares, Protocol):
    """A comparison of rows that can be narrowed down to keys."""

    def read(
        self, position: int, ranges: Collection[int], start: bytes, /
    ) -> "Future[tuple[list[ComparedRow], bytes | None]]":
        """Returns the rows in some ranges from key `start` on, and where to go on, None at the end.

        Raises:
            NotComparable: From the future, the rows of that comparison are not kept.
        """


class ComparesStored(Compares, Protocol):
    """A comparison of rows in the member's own store, as `StoredRows` uses it."""

    def expect(self, position: int, /) -> None:
        """Takes part in the comparison at `position`, once all before it is committed."""


class Applies(Protocol):
    """An applier on the member's own store, as `StoredRows` uses it."""

    def recover(self, groups: Iterable[Sequence[RelayEntry]], /) -> object:
        """Takes the entries that an earlier run has stored."""

    def append(self, entries: Sequence[RelayEntry], /) -> object:
        """Takes entries, in order."""

    def end_group_after(self, position: int, /) -> None:
        """Lets no group commit reach beyond a position."""


class RowStore(Protocol):
    """What keeps a member's rows, for one run."""

    @property
    def comparison(self) -> Compares:
        """What digests rows."""

    def checkpoint(self) -> Checkpoint | None:
        """Returns the version, the position and the GTIDs of what is visible; None: nothing is."""

    def start(self) -> None:
        """Begins to execute entries, once the state is loaded."""

    def recover(self, groups: Iterable[Sequence[RelayEntry]], /) -> object:
        """Takes the entries that an earlier run has stored."""

    def append(self, entries: Sequence[RelayEntry], /) -> None:
        """Takes entries of the total order, in order; does not wait for their execution."""

    def expect_comparison(self, position: int, /) -> None:
        """Has the rows taken at `position`, where nothing behind it is visible."""

    def check_readable(self, member: str, /) -> None:
        """Raises NotServing, RowsAtServer or RowsNotKept if `member` has no rows to be read."""

    def open_snapshot(self) -> RowsSnapshot:
        """Returns the rows as they are now, with their version; `check_readable` comes before."""

    def lasting(self, position: int, /) -> int:
        """Returns up to which position, of those that are visible, nobody needs entries: rows last
        as long as the state in the store does. The relay queue has what is behind it.
        """

    def flush_up_to(self, version: int, /) -> None:
        """Has `version`, which is visible, on disk soon; `Driver.on_durable` tells when it is."""


class OpenRows(RowStore, Protocol):
    """What keeps a member's rows, with threads or sessions that execute entries."""

    @property
    def comparison(self) -> ReadsCompared:
        """What digests rows."""

    def status(self) -> ApplierStatus:
        """Returns the numbers of entries that are executed and that wait."""

    def server_status(self) -> Any:
        """Returns the status of the server that keeps the rows, a message; None: the store does."""

    def relay_first_version(self) -> int:
        """Returns the oldest version that a copy has the changes of, without rows; 0: of none."""

    def stop(self, seconds: float, /) -> object:
        """Executes nothing any more; waits for what is being executed, at most so long."""

    def close(self) -> None:
        """Lets go of the rows; nobody reads them any more."""


class RowsServer(Protocol):
    """A server that keeps a member's rows, for one run."""

    def rows(self, runtime: Any, fragments: FragmentStore, /) -> OpenRows:
        """Returns its rows; `fragments` has those of large transactions."""

    async def close(self, reason: str) -> None:
        """Ends what is open at the server, which says why; empty: the member was stopped."""


class StoredRows:
    """Rows in the member's own store, on which an applier executes entries."""

    def __init__(self, target: RocksDbTarget, applier: Applies, comparison: ComparesStored) -> None:
        self.target = target
        self._applier = applier
        self._compares = comparison

    @property
    def comparison(self) -> Compares:
        """What digests the store's rows."""
        return self._compares

    def checkpoint(self) -> Checkpoint | None:
        """Returns the one of the store, written by the same batches as the rows."""
        return self.target.checkpoint()

    def start(self) -> None:
        """Does nothing: who executes entries waits for them."""

    def recover(self, groups: Iterable[Sequence[RelayEntry]]) -> None:
        """Passes groups to the applier."""
        self._applier.recover(groups)

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """Passes entries to the applier."""
        self._applier.append(entries)

    def expect_comparison(self, position: int) -> None:
        """Has the rows taken at `position`, behind which no group commit reaches."""
        self._applier.end_group_after(position)
        self._compares.expect(position)

    def check_readable(self, member: str) -> None:
        """Raises NotServing while visible rows may belong to no version."""
        if self.target.is_unfinished:
            state = "executing again what it was writing when its last run ended"
            raise NotServing(member=member, state=state)

    def open_snapshot(self) -> RowsSnapshot:
        """Returns a snapshot of the store."""
        return self.target.open_snapshot()

    def lasting(self, position: int) -> int:
        """Returns the position: rows are in the store, too."""
        return position

    def flush_up_to(self, version: int) -> None:
        """Does nothing: who keeps the store flushes it when he wants to."""
