"""The member's store on a real RocksDB: each way in which it says no.

What it does otherwise is in `tests/sim/test_disk.py`, as a contract; that a restarted certifier
goes on as before is in `test_core.py`.
"""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupcert.certifier.core import Certifier
from groupcert.certifier.errors import (
    CorruptStore,
    DiskFull,
    ForeignDataFolder,
    InvalidSetting,
    NotServing,
    UnsupportedFormat,
)
from groupcert.certifier.records import GarbageCollection, Transaction
from groupcert.certifier.storage.info_store import CertificationInfoStore
from groupcert.certifier.storage.store import Family, Store, StoreIdentity, integer_key
from tests.certifier.histories import options
from tests.lockless import python_without_locks
from tests.stores import IDENTITY, put, writing


def put_rows(store: Store, **rows: str) -> None:
    """Writes rows, in one batch."""
    put(store, Family.DATA, *((key.encode(), value.encode()) for key, value in rows.items()))


def rows_of(store: Store) -> dict[str, str]:
    """Returns all rows."""
    return {key.decode(): value.decode() for key, value in store.scan(Family.DATA)}


def test_integer_keys_sort_as_their_numbers() -> None:
    numbers = [0, 1, 255, 256, 2**63, 2**64 - 1]
    assert sorted(map(integer_key, reversed(numbers))) == [integer_key(n) for n in numbers]


@pytest.mark.parametrize(
    "identity",
    [StoreIdentity(group="other", member="m1"), StoreIdentity(group="g", member="m2")],
)
def test_a_folder_of_another_group_or_member_is_refused_and_left_alone(
    tmp_path: Path, identity: StoreIdentity
) -> None:
    Store(tmp_path, IDENTITY).close()
    with pytest.raises(ForeignDataFolder) as caught:
        Store(tmp_path, identity)
    assert caught.value.path == str(tmp_path)
    assert (identity.group in caught.value.expected) and ('"g"' in caught.value.found)
    Store(tmp_path, IDENTITY).close()


def test_a_folder_of_another_release_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path, IDENTITY) as store:
        with writing(store) as batch:
            batch.put(Family.META, b"format", b"7")
    with pytest.raises(UnsupportedFormat) as caught:
        Store(tmp_path, IDENTITY)
    assert (caught.value.found, caught.value.supported) == ("7", "1")


def test_a_folder_that_is_open_is_refused_in_this_process_and_in_others(tmp_path: Path) -> None:
    with Store(tmp_path, IDENTITY):
        with pytest.raises(ForeignDataFolder, match="a process that has it open"):
            Store(tmp_path, IDENTITY)
        other = subprocess.run(
            [sys.executable, "-c", _OPEN_STORE, str(tmp_path)], capture_output=True, text=True
        )
        assert other.stdout.startswith("FOREIGN_DATA_FOLDER: "), other.stderr


def test_a_folder_that_cannot_be_locked_says_so_and_names_no_process(tmp_path: Path) -> None:
    (tmp_path / "rocksdb" / "LOCK").mkdir(parents=True)
    with pytest.raises(InvalidSetting, match=r"can be locked \(Is a directory\): ") as caught:
        Store(tmp_path, IDENTITY)
    assert caught.value.value == str(tmp_path)


def test_a_file_system_without_locks_is_named_as_that(tmp_path: Path) -> None:
    said = python_without_locks(_OPEN_STORE, str(tmp_path))
    assert said.startswith("INVALID_SETTING: ") and "(No locks available): on a file system" in said


def test_nobody_else_may_read_in_a_folder_that_is_made_here(tmp_path: Path) -> None:
    with Store(tmp_path / "member", IDENTITY):
        modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "member").rglob("")]
    assert modes == [0o700, 0o700]


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
def test_a_damaged_file_is_found_when_the_store_is_opened(tmp_path: Path, name: str) -> None:
    with Store(tmp_path, IDENTITY) as store:
        put_rows(store, a="1")
    [file] = (tmp_path / "rocksdb").glob(name)
    file.write_bytes(bytes(byte ^ 0xFF for byte in file.read_bytes()))
    with pytest.raises(CorruptStore, match="move the folder away") as caught:
        Store(tmp_path, IDENTITY)
    assert caught.value.path == str(tmp_path)


def test_a_damaged_block_is_corrupt_and_not_in_use(tmp_path: Path) -> None:
    with Store(tmp_path, IDENTITY) as store:
        put_rows(store, **{f"k{number}": "x" * 100 for number in range(1_000)})
    largest = max((tmp_path / "rocksdb").glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[100:200] = bytes(100)
    largest.write_bytes(content)
    with Store(tmp_path, IDENTITY) as store:
        with pytest.raises(CorruptStore, match="checksum"):
            store.get(Family.DATA, b"k0")
        with pytest.raises(CorruptStore, match="checksum"):
            store.last(Family.DATA, b"k0")
        with pytest.raises(CorruptStore, match="checksum"):
            store.snapshot(Family.DATA).get(b"k0")
        with pytest.raises(CorruptStore, match="checksum"):
            list(store.snapshot(Family.DATA).scan(b""))


def test_a_damaged_block_that_holds_the_identity_is_corrupt(tmp_path: Path) -> None:
    with Store(tmp_path, IDENTITY) as store:
        store.flush_tables()
    for table in (tmp_path / "rocksdb").glob("*.sst"):
        content = bytearray(table.read_bytes())
        content[:8] = bytes(byte ^ 0xFF for byte in content[:8])
        table.write_bytes(content)
    with pytest.raises(CorruptStore, match=r"checksum.*: move the folder away") as caught:
        Store(tmp_path, IDENTITY)
    assert caught.value.path == str(tmp_path)


def test_a_path_that_is_a_file_keeps_the_systems_own_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        Store(tmp_path / "file", IDENTITY)


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The system refuses to let any file of this process grow further: a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_said_of_every_write_and_what_was_flushed_stays(tmp_path: Path) -> None:
    store = Store(tmp_path, IDENTITY)
    flushed = 0
    with files_no_larger_than(200_000):
        with pytest.raises(DiskFull, match="free some") as caught:
            for number in range(100):
                put_rows(store, **{f"k{number}": "x" * 10_000})
                store.flush()
                flushed += 1
        assert caught.value.path == str(tmp_path)
        with pytest.raises(DiskFull, match="File too large"):
            put_rows(store, a="1")
        with pytest.raises(DiskFull, match="File too large"):
            store.flush()
        with pytest.raises(DiskFull, match="File too large"):
            store.close()
    with Store(tmp_path, IDENTITY) as store:
        assert len(rows_of(store)) >= flushed > 0
        put_rows(store, a="1")


def test_a_disk_without_space_for_a_store_is_said(tmp_path: Path) -> None:
    with files_no_larger_than(10), pytest.raises(DiskFull):
        Store(tmp_path, IDENTITY)


_OPEN_STORE = """
import sys
from pathlib import Path
from groupcert.certifier.errors import GroupcertError
from groupcert.certifier.storage.store import Store, StoreIdentity

try:
    Store(Path(sys.argv[1]), StoreIdentity(group="g", member="m1"))
except GroupcertError as error:
    sys.stdout.write(f"{error.reason}: {error}")
"""


def certify(certifier: Certifier, first: int, count: int) -> None:
    """Certifies transactions of one item each."""
    for number in range(first, first + count):
        certifier.certify(Transaction(number, "m1", certifier.window.newest_version, [number]))


def test_there_is_nothing_to_load_from_a_new_store(store: Store) -> None:
    assert CertificationInfoStore(store, Certifier(options())).load() is False


def test_pieces_go_when_all_of_them_is_collected(store: Store) -> None:
    certifier = Certifier(options())
    saved = CertificationInfoStore(store, certifier)
    pieces = []
    for first, stable in ((1, 0), (11, 5), (21, 20), (31, 33), (41, 50)):
        certify(certifier, first, 10)
        certifier.deliver(GarbageCollection(first, stable))
        with writing(store) as batch:
            saved.save(batch)
        keys = [key for key, _ in store.scan(Family.CERTIFICATION)]
        pieces.append([int.from_bytes(key, "big") for key in keys])
        restored = Certifier(options())
        assert CertificationInfoStore(store, restored).load()
        assert dict(restored.info.entries()) == dict(certifier.info.entries())
    assert pieces == [[1], [1, 11], [21], [34], []]


def test_a_store_that_misses_transactions_is_corrupt(store: Store) -> None:
    certifier = Certifier(options())
    saved = CertificationInfoStore(store, certifier)
    for first in (1, 11, 21):
        certify(certifier, first, 10)
        with writing(store) as batch:
            saved.save(batch)
    with writing(store) as batch:
        batch.delete(Family.CERTIFICATION, integer_key(11))
    with pytest.raises(CorruptStore, match="version 21 next after 10"):
        CertificationInfoStore(store, Certifier(options())).load()


def test_rows_of_a_file_come_in_at_once_and_the_file_goes(store: Store) -> None:
    with writing(store) as batch:
        batch.put(Family.DATA, b"a", b"old")
        batch.put(Family.DATA, b"b", b"old")
    before = store.snapshot(Family.DATA)
    file = store.rows_file("rows")
    file.add(b"a", None)
    file.add(b"b", b"new")
    file.finish()
    assert store.get(Family.DATA, b"b") == b"old"
    store.ingest(Family.DATA, file)
    assert dict(store.scan(Family.DATA)) == {b"b": b"new"}
    assert before.get(b"a") == b"old"
    assert not file.path.exists()


def test_a_file_that_cannot_be_finished_or_taken_in_is_said_so(store: Store) -> None:
    with pytest.raises(CorruptStore):
        store.rows_file("without rows").finish()
    file = store.rows_file("given up")
    file.add(b"a", b"1")
    file.finish()
    file.remove()
    with pytest.raises(CorruptStore):
        store.ingest(Family.DATA, file)


def test_a_file_that_cannot_be_begun_or_gone_on_with_is_said_so(
    store: Store, tmp_path: Path
) -> None:
    file = store.rows_file("out of order")
    file.add(b"b", b"1")
    with pytest.raises(CorruptStore):
        file.add(b"a", b"1")
    (tmp_path / "rows-files" / "taken.sst").mkdir()
    with pytest.raises(CorruptStore):
        store.rows_file("taken")


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.get(Family.META, b"k"),
        lambda store: list(store.scan(Family.META)),
        lambda store: store.last(Family.META, b"k"),
        lambda store: store.snapshot(Family.META),
        lambda store: store.batch().put(Family.META, b"k", b""),
        lambda store: store.flush(),
        lambda store: store.checkpoint(store.path / "copy"),
    ],
)
def test_a_closed_store_says_that_its_member_does_not_serve(
    tmp_path: Path, use: Callable[[Store], object]
) -> None:
    store = Store(tmp_path, IDENTITY)
    batch = store.batch()
    batch.put(Family.META, b"k", b"")
    store.close()
    with pytest.raises(NotServing, match="is OFFLINE"):
        use(store)
    with pytest.raises(NotServing, match="is OFFLINE"):
        store.write(batch)
    store.flush_tables()
    assert store.property("estimate-num-keys") == {}
