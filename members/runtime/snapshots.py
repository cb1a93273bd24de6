"""Open snapshots of the embedded store: their leases, and the oldest version that is still read.

The rule it keeps: a snapshot that a client holds keeps its version from being collected, but not
for ever: it ends with its session or its lease, and past `snapshot_hold_versions` it is held by the
store only, so that its transaction may be TOO_OLD. A caller that opens many leaves room for others.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ...applier.targets.rocksdb import RowsSnapshot
from ...certifier.errors import SnapshotExpired
from ..core.caller_shares import Shares
from ..core.held_versions import HeldVersions
from ..errors.calls import SessionEnded, TooManySnapshots


@dataclass(slots=True)
class _Open:
    rows: RowsSnapshot
    release: Callable[[], None]
    used_ms: int
    caller: str
    session_id: int


class Snapshots:
    """The snapshots that clients hold at one member."""

    def __init__(
        self,
        open_rows: Callable[[], RowsSnapshot],
        held: HeldVersions,
        *,
        lease_ms: int,
        snapshots_max: int,
        first_id: int = 1,
    ) -> None:
        """Begins without snapshots; `first_id` differs in each run, so that ids never repeat. The
        versions of open snapshots are among `held`.
        """
        self.lease_ms = lease_ms
        self._open_rows = open_rows
        self._shares = Shares(snapshots_max)
        self._held = held
        self._open: dict[int, _Open] = {}
        self._sessions: dict[int, set[int]] = {}
        self._latest: RowsSnapshot | None = None
        self._latest_has = 0
        """The least number of `open` whose rows it has."""
        self._next_id = first_id

    def begin_session(self) -> int:
        """Begins a session, and returns its id."""
        session_id = self._new_id()
        self._sessions[session_id] = set()
        return session_id

    def end_session(self, session_id: int) -> None:
        """Ends a session and closes its snapshots; ending it twice is no error."""
        for snapshot_id in self._sessions.pop(session_id, ()):
            self._close(snapshot_id)

    def open(
        self, committed: int, now_ms: int, *, caller: str = "", session_id: int = 0
    ) -> tuple[int, int]:
        """Opens a snapshot of all that is committed, and returns its id and version.

        Args:
            committed: A number that each commit makes larger, such as the newest version where
                commits are in order.
            caller: Who opens it, and gets it out of its share.
            session_id: The session that it ends with; 0: none.

        Raises:
            SessionEnded: There is no such session.
            TooManySnapshots: The caller holds its share of them.
        """
        if session_id and session_id not in self._sessions:
            raise SessionEnded(session_id=session_id)
        shares = self._shares
        if not shares.take(caller):
            raise TooManySnapshots(
                open=shares.taken,
                open_max=shares.places_max,
                held=shares.held(caller),
                share=shares.share(caller),
            )
        if self._latest is None or self._latest_has < committed:
            self._latest, self._latest_has = self._open_rows(), committed
        rows = self._latest
        snapshot_id = self._new_id()
        release = self._held.hold(rows.version)
        self._open[snapshot_id] = _Open(rows, release, now_ms, caller, session_id)
        if session_id:
            self._sessions[session_id].add(snapshot_id)
        return snapshot_id, rows.version

    def rows(self, snapshot_id: int, now_ms: int) -> RowsSnapshot:
        """Returns the rows of an open snapshot, and renews its lease.

        Raises:
            SnapshotExpired: It was closed, or not used for longer than its lease.
        """
        found = self._open.get(snapshot_id)
        if found is None:
            raise SnapshotExpired(snapshot_id=snapshot_id, lease_ms=self.lease_ms)
        found.used_ms = now_ms
        return found.rows

    def version(self, snapshot_id: int, now_ms: int) -> int:
        """Returns the version of an open snapshot, as `rows`; a caller that waits must not hold the
        rows, which keep the store open.
        """
        return self.rows(snapshot_id, now_ms).version

    def close(self, snapshot_id: int) -> None:
        """Closes a snapshot; closing one that is not open is no error."""
        found = self._open.get(snapshot_id)
        if found is None:
            return
        if found.session_id:
            self._sessions[found.session_id].remove(snapshot_id)
        self._close(snapshot_id)

    def close_all(self) -> None:
        """Ends every session and closes every snapshot: each one keeps the store open."""
        self._sessions.clear()
        for snapshot_id in list(self._open):
            self._close(snapshot_id)
        self._latest = None

    def expire(self, now_ms: int) -> int:
        """Closes what was not used for longer than its lease, and returns how many that were.

        Cost: O(open snapshots).
        """
        late = [
            snapshot_id
            for snapshot_id, found in self._open.items()
            if now_ms - found.used_ms > self.lease_ms
        ]
        for snapshot_id in late:
            self.close(snapshot_id)
        if not self._open:
            self._latest = None
        return len(late)

    def __len__(self) -> int:
        return len(self._open)

    def _new_id(self) -> int:
        new = self._next_id
        self._next_id += 1
        return new

    def _close(self, snapshot_id: int) -> None:
        found = self._open.pop(snapshot_id)
        self._shares.give_back(found.caller)
        found.release()
