"""Large transactions on the embedded target: the rows come in files, and nobody sees a part."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from groupcert.applier.engine.applier import Applier, ApplierOptions
from groupcert.applier.queue.fragment_references import FragmentSet
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import Checkpoint, TargetProgress
from groupcert.applier.schemes.logical_clock import LogicalClock
from groupcert.applier.targets import ingested_files, rocksdb
from groupcert.applier.targets.rocksdb import (
    CHECKPOINT_KEY,
    RocksDbTarget,
    RowChanges,
    Rows,
    is_large,
)
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.storage.store import Family, RowsFile, Store
from tests.applier.histories import GROUP
from tests.stores import IDENTITY

Pieces = Sequence[dict[bytes, bytes | None]]


def entry(version: int, payload: bytes, *, local: bool = False) -> RelayEntry:
    """One that runs alone."""
    return RelayEntry(version, version, Gtid(GROUP, version), 0, 0, local, payload)


def large(version: int) -> RelayEntry:
    """A large one."""
    return entry(version, FragmentSet(1, version, 1, 1, bytes(16)).reference())


def small(version: int, key: bytes, *, local: bool = False) -> RelayEntry:
    """One that puts a row."""
    return entry(version, key, local=local)


def target_of(
    store: Store, pieces: Pieces, target: type[RocksDbTarget] = RocksDbTarget
) -> RocksDbTarget:
    """A target where every large transaction has these pieces; a small one is its key."""

    def rows(payload: bytes) -> Iterator[Rows]:
        del payload
        for piece in pieces:
            puts = [(key, value) for key, value in piece.items() if value is not None]
            deletes = [key for key, value in piece.items() if value is None]
            yield [key for key, _ in puts], [value for _, value in puts], deletes

    return target(store, lambda key: ([key], [b"small"], []), decode_large=rows)


def commit(target: RocksDbTarget, progress: TargetProgress, *entries: RelayEntry) -> None:
    """Executes and commits entries as one group of two jobs."""
    jobs: list[Job[RowChanges]] = [Job([each]) for each in entries]
    for job in jobs:
        job.execution = target.execute(job)
    target.commit(CommitGroup(entries[-1].version + 1, jobs), progress)


def rows_of(target: RocksDbTarget) -> dict[bytes, bytes]:
    """What readers see."""
    return dict(target.open_snapshot().scan())


PIECES: Pieces = ({b"a": b"1", b"b": b"2"}, {b"c": b"3", b"s": None}, {b"d": None})


def test_a_group_with_a_large_transaction_has_the_rows_of_serial_execution(store: Store) -> None:
    target, progress = target_of(store, PIECES), TargetProgress(Checkpoint())
    commit(target, progress, small(1, b"d"), small(2, b"s"))
    commit(target, progress, small(3, b"a"), large(4), small(5, b"b"))
    assert rows_of(target) == {b"a": b"1", b"b": b"small", b"c": b"3"}
    assert target.open_snapshot().version == 5
    assert not list(store.path.glob("rows-files/*")), "every file was taken in"


@pytest.mark.parametrize("keys", [b"cba", b"abcabdabe", bytes(range(200, 100, -1))])
def test_rows_in_no_order_are_written_all_the_same(store: Store, keys: bytes) -> None:
    pieces: Pieces = [{bytes([key]): b"%d" % n} for n, key in enumerate(keys)]
    target = target_of(store, pieces)
    commit(target, TargetProgress(Checkpoint()), large(1))
    assert rows_of(target) == {bytes([key]): b"%d" % n for n, key in enumerate(keys)}


@pytest.mark.parametrize("files_max", [0, 64])
def test_readers_see_the_rows_before_until_all_are_there(
    store: Store, monkeypatch: pytest.MonkeyPatch, files_max: int
) -> None:
    """In files, and in batches; a snapshot that was opened then stays as it was."""
    monkeypatch.setattr(ingested_files, "FILES_MAX", files_max)
    target, progress = target_of(store, PIECES), TargetProgress(Checkpoint())
    commit(target, progress, small(1, b"x"))
    looked = look_after_each(store, monkeypatch, lambda: target.open_snapshot())
    commit(target, progress, large(2))
    assert len(looked) >= 3
    assert {each.version for each in looked[:-1]} == {1}
    assert all(dict(each.scan()) == {b"x": b"small"} for each in looked[:-1])
    assert rows_of(target) == {b"x": b"small", b"a": b"1", b"b": b"2", b"c": b"3"}


def look_after_each(
    store: Store, monkeypatch: pytest.MonkeyPatch, look: Callable[[], rocksdb.RowsSnapshot]
) -> list[rocksdb.RowsSnapshot]:
    """What is seen after each write to the store."""
    looked: list[rocksdb.RowsSnapshot] = []
    write, ingest = store.write, store.ingest

    def written(batch: object) -> None:
        write(batch)  # type: ignore[arg-type]  # it is one
        looked.append(look())

    def ingested(family: Family, file: RowsFile) -> None:
        ingest(family, file)
        looked.append(look())

    monkeypatch.setattr(store, "write", written)
    monkeypatch.setattr(store, "ingest", ingested)
    return looked


def test_after_a_crash_in_between_nobody_reads_before_it_is_executed_again(tmp_path: Path) -> None:
    with Store(tmp_path, IDENTITY) as store:
        target, progress = target_of(store, PIECES), TargetProgress(Checkpoint())
        commit(target, progress, small(1, b"x"))
        crashing = target_of(store, PIECES)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "write", dying(store))
            with pytest.raises(RuntimeError, match="killed"):
                commit(crashing, TargetProgress(progress.checkpoint), small(2, b"y"), large(3))
        assert rows_of(crashing) == {b"x": b"small"}
        crashing.close()
    with Store(tmp_path, IDENTITY) as store:
        target = target_of(store, PIECES)
        assert target.is_unfinished
        with pytest.raises(AssertionError):
            target.open_snapshot()
        checkpoint = target.checkpoint()
        assert checkpoint is not None and checkpoint.version == 1
        progress = TargetProgress(checkpoint)
        commit(target, progress, small(2, b"y"))
        assert target.is_unfinished, "the other half of the group is still to come"
        commit(target, progress, large(3))
        assert not target.is_unfinished
        assert rows_of(target).keys() == {b"x", b"y", b"a", b"b", b"c"}
    with Store(tmp_path, IDENTITY) as store:
        assert not target_of(store, PIECES).is_unfinished


def dying(store: Store) -> Callable[[object], None]:
    """A `write` that fails at the batch with the checkpoint."""
    write, get = store.write, store.get

    def write_or_die(batch: object) -> None:
        if get(Family.DATA, rocksdb.ROW_PREFIX + b"c") is not None:
            raise RuntimeError("killed")
        write(batch)  # type: ignore[arg-type]  # it is one

    assert get(Family.DATA, CHECKPOINT_KEY)
    return write_or_die


def test_who_appends_does_not_commit_a_large_transaction(store: Store) -> None:
    """Wherever it becomes ready beside local ones, which the appender commits."""
    committers: list[tuple[bool, str]] = []

    class Watched(RocksDbTarget):
        def commit(self, group: CommitGroup[RowChanges], progress: TargetProgress) -> None:
            committers.append((is_large(group), threading.current_thread().name))
            super().commit(group, progress)

    applier = Applier(
        target_of(store, PIECES, Watched),
        LogicalClock(),
        2,
        on_committed=lambda version, position: None,
        on_error=lambda error: None,
        options=ApplierOptions(workers_hold_jobs=False, is_slow=is_large),
    )
    for version in range(1, 80):
        is_third = version % 3 == 0
        applier.append([large(version) if is_third else small(version, b"k", local=True)])
    assert applier.drain(60)
    assert applier.stop(60)
    assert {name for slow, name in committers if slow} <= {"applier-0", "applier-1"}
    assert "MainThread" in {name for slow, name in committers if not slow}
