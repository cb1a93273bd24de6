"""Open snapshots: leases, limits, and how long they hold the stable set back."""

from collections.abc import Callable

import pytest

from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.applier.targets.rocksdb import CHECKPOINT_KEY, ROW_PREFIX, RowsSnapshot
from groupcert.certifier.errors import SnapshotExpired
from groupcert.certifier.storage.store import Family, Store
from groupcert.members.core.held_versions import HeldVersions
from groupcert.members.errors.calls import SessionEnded, TooManySnapshots
from groupcert.members.runtime.snapshots import Snapshots
from tests.sim.disk import SimulatedDisk
from tests.stores import put

LEASE_MS = 1_000


class Rows:
    """A store whose rows are of some version, and how often they were opened."""

    def __init__(self) -> None:
        self.store: Store = SimulatedDisk().as_store()
        self.opened = 0
        self.commit(1)

    def commit(self, version: int) -> None:
        """Puts the version into the row `version`, too."""
        put(
            self.store,
            Family.DATA,
            (CHECKPOINT_KEY, Checkpoint(version=version).encode()),
            (ROW_PREFIX + b"version", b"%d" % version),
        )

    def open(self) -> RowsSnapshot:
        """The rows now."""
        self.opened += 1
        return RowsSnapshot(self.store.snapshot(Family.DATA))


def snapshots_of(
    open_rows: Callable[[], RowsSnapshot], snapshots_max: int = 6, held: HeldVersions | None = None
) -> Snapshots:
    """Snapshots of these rows."""
    held = held or HeldVersions(100)
    return Snapshots(open_rows, held, lease_ms=LEASE_MS, snapshots_max=snapshots_max)


def test_a_snapshot_shows_the_rows_of_its_version_whatever_is_committed_later() -> None:
    rows = Rows()
    snapshots = snapshots_of(rows.open)
    snapshot_id, version = snapshots.open(1, now_ms=0)
    rows.commit(2)
    assert version == 1
    assert snapshots.rows(snapshot_id, now_ms=1).get(b"version") == b"1"


def test_snapshots_of_one_version_share_its_rows() -> None:
    rows = Rows()
    snapshots = snapshots_of(rows.open)
    ids = [snapshots.open(1, now_ms=0)[0] for _ in range(2)]
    assert len(set(ids)) == len(snapshots) == 2
    assert rows.opened == 1
    rows.commit(2)
    assert snapshots.open(2, now_ms=0)[1] == 2
    assert rows.opened == 2


def test_no_more_than_the_limit_are_open() -> None:
    snapshots = snapshots_of(Rows().open, snapshots_max=1)
    snapshot_id, _ = snapshots.open(1, now_ms=0)
    with pytest.raises(TooManySnapshots) as raised:
        snapshots.open(1, now_ms=0)
    assert (raised.value.open, raised.value.open_max) == (1, 1)
    snapshots.close(snapshot_id)
    assert snapshots.open(1, now_ms=0)[1] == 1


def test_a_closed_snapshot_is_gone_and_closing_it_again_is_no_mistake() -> None:
    snapshots = snapshots_of(Rows().open)
    snapshot_id, _ = snapshots.open(1, now_ms=0)
    snapshots.close(snapshot_id)
    snapshots.close(snapshot_id)
    with pytest.raises(SnapshotExpired) as raised:
        snapshots.rows(snapshot_id, now_ms=0)
    assert (raised.value.snapshot_id, raised.value.lease_ms) == (snapshot_id, LEASE_MS)


def test_a_snapshot_ends_with_its_lease_and_use_begins_it_again() -> None:
    snapshots = snapshots_of(Rows().open)
    used, unused = (snapshots.open(1, now_ms=0)[0] for _ in range(2))
    snapshots.rows(used, now_ms=500)
    assert snapshots.expire(now_ms=LEASE_MS) == 0
    assert snapshots.expire(now_ms=LEASE_MS + 1) == 1
    assert snapshots.rows(used, now_ms=LEASE_MS + 1).version == 1
    with pytest.raises(SnapshotExpired):
        snapshots.rows(unused, now_ms=LEASE_MS + 1)


def test_rows_are_let_go_when_nobody_holds_them() -> None:
    rows = Rows()
    snapshots = snapshots_of(rows.open)
    snapshots.open(1, now_ms=0)
    snapshots.expire(now_ms=2 * LEASE_MS)
    snapshots.open(1, now_ms=2 * LEASE_MS)
    assert rows.opened == 2


def test_the_oldest_open_snapshot_holds_the_stable_version() -> None:
    rows = Rows()
    held = HeldVersions(100)
    snapshots = snapshots_of(rows.open, held=held)
    first, second = (snapshots.open(1, now_ms=0)[0] for _ in range(2))
    rows.commit(5)
    third, _ = snapshots.open(5, now_ms=0)
    snapshots.close(first)
    assert held.advance(9) == 1
    snapshots.close(second)
    assert held.advance(4) == 4
    assert held.advance(9) == 5
    snapshots.close(third)
    assert held.advance(9) == 9


def test_an_id_of_another_run_names_nothing() -> None:
    snapshots = Snapshots(
        Rows().open, HeldVersions(100), lease_ms=LEASE_MS, snapshots_max=3, first_id=70
    )
    assert snapshots.open(1, now_ms=0)[0] == 70
    with pytest.raises(SnapshotExpired):
        snapshots.rows(1, now_ms=0)


def test_closing_all_lets_go_of_everything() -> None:
    rows = Rows()
    held = HeldVersions(100)
    snapshots = snapshots_of(rows.open, held=held)
    snapshot_id, _ = snapshots.open(1, now_ms=0)
    snapshots.close_all()
    assert len(snapshots) == 0
    assert held.oldest == 0
    with pytest.raises(SnapshotExpired):
        snapshots.rows(snapshot_id, now_ms=0)
    assert snapshots.open(1, now_ms=0)[1] == 1
    assert rows.opened == 2


def test_snapshots_end_with_their_session_and_others_stay() -> None:
    snapshots = snapshots_of(Rows().open)
    one, two = snapshots.begin_session(), snapshots.begin_session()
    ids = [snapshots.open(1, now_ms=0, session_id=each)[0] for each in (one, one, two)]
    snapshots.close(ids[0])
    snapshots.end_session(one)
    snapshots.end_session(one)
    assert len(snapshots) == 1
    assert snapshots.rows(ids[2], now_ms=0).version == 1
    for closed in ids[:2]:
        with pytest.raises(SnapshotExpired):
            snapshots.rows(closed, now_ms=0)
    with pytest.raises(SessionEnded) as raised:
        snapshots.open(1, now_ms=0, session_id=one)
    assert raised.value.session_id == one
    snapshots.close_all()
    snapshots.end_session(two)
    assert len(snapshots) == 0


def test_a_caller_holds_its_share_and_others_get_theirs() -> None:
    snapshots = snapshots_of(Rows().open, snapshots_max=4)
    held = [snapshots.open(1, now_ms=0, caller="one")[0] for _ in range(2)]
    with pytest.raises(TooManySnapshots) as raised:
        snapshots.open(1, now_ms=0, caller="one")
    assert (raised.value.held, raised.value.share, raised.value.open_max) == (2, 2, 4)
    snapshots.open(1, now_ms=0, caller="two")
    snapshots.close(held[0])
    snapshots.open(1, now_ms=0, caller="one")
    assert snapshots.expire(now_ms=2 * LEASE_MS) == 3
    assert len([snapshots.open(1, now_ms=0, caller="one") for _ in range(2)]) == 2
