"""Open snapshots of the embedded store: leases, and the oldest version that somebody still reads.

The rule it keeps: a snapshot that a client holds keeps its version from being collected, but not
for ever: it ends with its lease, and past `hold_versions` it is held by the store only, so that its
transaction may be TOO_OLD.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sortedcontainers import SortedDict

from applier.targets.rocksdb import RowsSnapshot
from certifier.errors import SnapshotExpired, TooManySnapshots


@dataclass(slots=True)
class _Open:
    rows: RowsSnapshot
    used_ms: int


class Snapshots:
    """The snapshots that clients hold at one member."""

    def __init__(
        self,
        open_rows: Callable[[], RowsSnapshot],
        *,
        lease_ms: int,
        snapshots_max: int,
        hold_versions: int,
        first_id: int = 1,
    ) -> None:
        """`first_id`: another one in each run, so that an id of an earlier run names nothing."""
        self.lease_ms = lease_ms
        self._open_rows = open_rows
        self._snapshots_max = snapshots_max
        self._hold_versions = hold_versions
        self._open: dict[int, _Open] = {}
        self._versions: SortedDict[int, int] = SortedDict()
        self._latest: RowsSnapshot | None = None
        self._next_id = first_id

    def open(self, committed_version: int, now_ms: int) -> tuple[int, int]:
        """Opens a snapshot of all that is committed, and returns its id and version.

        Raises:
            TooManySnapshots: Clients hold as many as are allowed.
        """
        if len(self._open) >= self._snapshots_max:
            raise TooManySnapshots(open=len(self._open), open_max=self._snapshots_max)
        if self._latest is None or self._latest.version < committed_version:
            self._latest = self._open_rows()
        rows = self._latest
        snapshot_id = self._next_id
        self._next_id += 1
        self._open[snapshot_id] = _Open(rows, now_ms)
        self._versions[rows.version] = self._versions.get(rows.version, 0) + 1
        return snapshot_id, rows.version

    def rows(self, snapshot_id: int, now_ms: int) -> RowsSnapshot:
        """The rows of an open snapshot, whose lease begins again.

        Raises:
            SnapshotExpired: It was closed, or not used for longer than its lease.
        """
        found = self._open.get(snapshot_id)
        if found is None:
            raise SnapshotExpired(snapshot_id=snapshot_id, lease_ms=self.lease_ms)
        found.used_ms = now_ms
        return found.rows

    def version(self, snapshot_id: int, now_ms: int) -> int:
        """The version of an open snapshot, as `rows`; who waits must not hold the rows, which keep
        the store open.
        """
        return self.rows(snapshot_id, now_ms).version

    def close(self, snapshot_id: int) -> None:
        """Closes a snapshot; closing one that is not open is no mistake."""
        found = self._open.pop(snapshot_id, None)
        if found is None:
            return
        version = found.rows.version
        self._versions[version] -= 1
        if not self._versions[version]:
            del self._versions[version]

    def close_all(self) -> None:
        """Closes every snapshot: each one keeps the store open."""
        self._open.clear()
        self._versions.clear()
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

    def stable_version(self, durable_version: int) -> int:
        """The newest version that no held snapshot is older than."""
        if not self._versions:
            return durable_version
        oldest = self._versions.peekitem(0)[0]
        return min(durable_version, max(oldest, durable_version - self._hold_versions))

    def __len__(self) -> int:
        return len(self._open)
