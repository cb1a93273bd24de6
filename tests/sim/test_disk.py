"""The contract of a store: one body of tests, run on the simulation's disk and on RocksDB."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from groupcert.certifier.storage.store import SCAN_PAGE_ROWS, Family, Store, StoreIdentity
from tests.sim.disk import SimulatedDisk
from tests.stores import put, writing


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    if request.param == "memory":
        yield SimulatedDisk().as_store()
    else:
        with Store(tmp_path, StoreIdentity(group="test", member="m1")) as opened:
            yield opened


def test_families_do_not_see_each_other(store: Store) -> None:
    put(store, Family.DATA, (b"a", b"1"))
    put(store, Family.RELAY, (b"a", b"2"))
    assert store.get(Family.DATA, b"a") == b"1"
    assert store.get(Family.RELAY, b"a") == b"2"
    assert store.get(Family.OUTCOMES, b"a") is None


def test_nothing_of_a_batch_shows_before_it_is_written(store: Store) -> None:
    with writing(store) as batch:
        batch.put(Family.DATA, b"a", b"1")
        assert store.get(Family.DATA, b"a") is None
    assert store.get(Family.DATA, b"a") == b"1"


def test_the_last_change_of_a_key_in_a_batch_counts(store: Store) -> None:
    put(store, Family.DATA, (b"b", b"0"), (b"d", b"0"))
    with writing(store) as batch:
        batch.put(Family.DATA, b"a", b"1")
        batch.delete(Family.DATA, b"a")
        batch.delete(Family.DATA, b"b")
        batch.put(Family.DATA, b"b", b"2")
        batch.apply(Family.DATA, {b"c": b"3", b"d": None})
    assert list(store.scan(Family.DATA)) == [(b"b", b"2"), (b"c", b"3")]


def test_a_range_is_deleted_without_its_end(store: Store) -> None:
    put(store, Family.DATA, *((key, b"") for key in (b"a", b"b", b"b\x00", b"c", b"d")))
    with writing(store) as batch:
        batch.put(Family.DATA, b"bb", b"")
        batch.delete_range(Family.DATA, b"b", b"d")
        batch.put(Family.DATA, b"c", b"")
    assert [key for key, _ in store.scan(Family.DATA)] == [b"a", b"c", b"d"]


def test_a_scan_is_in_byte_order_from_its_start(store: Store) -> None:
    put(store, Family.RELAY, (b"\x02", b"2"), (b"\x01\xff", b"1"), (b"\x01", b"0"))
    assert list(store.scan(Family.RELAY, b"\x01\x00")) == [(b"\x01\xff", b"1"), (b"\x02", b"2")]


def test_the_last_key_up_to_one_is_found(store: Store) -> None:
    put(store, Family.RELAY, (b"b", b"1"), (b"d", b"2"))
    put(store, Family.DATA, (b"c", b"3"))
    found = [store.last(Family.RELAY, key) for key in (b"a", b"b", b"c", b"z")]
    assert found == [None, (b"b", b"1"), (b"b", b"1"), (b"d", b"2")]


def test_a_snapshot_does_not_change(store: Store) -> None:
    put(store, Family.DATA, (b"a", b"1"), (b"b", b"1"))
    snapshot = store.snapshot(Family.DATA)
    put(store, Family.DATA, (b"a", b"2"), (b"c", b"2"))
    assert snapshot.get(b"a") == b"1"
    assert snapshot.get(b"c") is None
    assert list(snapshot.scan(b"aa")) == [(b"b", b"1")]


def test_two_scans_of_a_snapshot_do_not_disturb_each_other(store: Store) -> None:
    pairs = [(b"%04d" % number, b"") for number in range(3 * SCAN_PAGE_ROWS)]
    put(store, Family.DATA, *pairs)
    snapshot = store.snapshot(Family.DATA)
    put(store, Family.DATA, (pairs[-1][0], b"later"), (b"later", b""))
    scans = zip(snapshot.scan(b""), snapshot.scan(b"0100"), strict=False)
    assert list(scans) == list(zip(pairs, pairs[100:], strict=False))


def test_closing_loses_nothing(tmp_path: Path) -> None:
    identity = StoreIdentity(group="test", member="m1")
    with Store(tmp_path, identity) as opened:
        put(opened, Family.DATA, (b"a", b"1"))
    with Store(tmp_path, identity) as opened:
        assert opened.get(Family.DATA, b"a") == b"1"
    disk = SimulatedDisk()
    put(disk.as_store(), Family.DATA, (b"a", b"1"))
    disk.close()
    disk.crash(batches_kept=0)
    assert disk.get(Family.DATA, b"a") == b"1"


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_crash_of_the_simulated_disk_leaves_a_prefix(kept: int) -> None:
    disk = SimulatedDisk()
    put(disk.as_store(), Family.DATA, (b"a", b"0"))
    disk.flush()
    put(disk.as_store(), Family.DATA, (b"a", b"1"), (b"b", b"1"))
    put(disk.as_store(), Family.DATA, (b"b", b"2"))
    disk.crash(batches_kept=kept)
    after = [{b"a": b"0"}, {b"a": b"1", b"b": b"1"}, {b"a": b"1", b"b": b"2"}]
    assert dict(disk.scan(Family.DATA)) == after[kept]
    assert disk.unsynced == 0


def test_a_copy_that_was_adopted_is_in_place_after_the_next_start() -> None:
    donor, joiner = SimulatedDisk(), SimulatedDisk()
    put(donor.as_store(), Family.DATA, (b"a", b"1"))
    put(joiner.as_store(), Family.DATA, (b"b", b"0"))
    copy = donor.checkpoint()
    put(donor.as_store(), Family.DATA, (b"a", b"2"))
    joiner.adopt(copy)
    joiner.crash(batches_kept=1)
    assert dict(joiner.scan(Family.DATA)) == {b"b": b"0"}
    joiner.finish()
    joiner.crash(batches_kept=0)
    assert dict(joiner.scan(Family.DATA)) == {b"a": b"1"}
