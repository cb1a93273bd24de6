"""Checkpoints of a store: as it was, whoever owns it now, and never read as more than is there."""

import shutil
import threading
from pathlib import Path

import pytest

from groupcert.certifier.errors import CorruptStore, DiskFull, ForeignDataFolder, UnsupportedFormat
from groupcert.certifier.storage.digest import PAGE_BYTES, content_digest
from groupcert.certifier.storage.reading import reading
from groupcert.certifier.storage.store import (
    ROCKSDB_FOLDER,
    Family,
    Store,
    StoreIdentity,
    drop_families,
    integer_key,
)
from tests.stores import put, writing

M1 = StoreIdentity(group="g", member="m1")
M2 = StoreIdentity(group="g", member="m2")
ROWS = 20_000


def filled(path: Path) -> Store:
    store = Store(path, M1)
    with writing(store) as batch:
        for number in range(ROWS):
            batch.put(Family.DATA, b"%08d" % number, bytes(number % 200))
        batch.put(Family.RELAY, integer_key(7), b"group")
    return store


def copied(store: Store, path: Path) -> Path:
    path.mkdir()
    store.checkpoint(path / ROCKSDB_FOLDER)
    return path


def largest_table(path: Path) -> Path:
    return max((path / ROCKSDB_FOLDER).glob("*.sst"), key=lambda each: each.stat().st_size)


def flip(path: Path) -> None:
    """Changes one bit in the middle of a file, which is a hard link, in a file of its own."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


def test_a_checkpoint_has_what_was_written_before_and_nothing_later(tmp_path: Path) -> None:
    with filled(tmp_path / "m1") as store:
        store.flush_tables()
        put(store, Family.META, (b"key", b"before"))
        copy = copied(store, tmp_path / "copy")
        put(store, Family.META, (b"key", b"after"))
    with Store(copy, M1) as again:
        assert again.get(Family.META, b"key") == b"before"
        assert sum(1 for _ in again.scan(Family.DATA)) == ROWS
        assert list(again.scan(Family.RELAY)) == [(integer_key(7), b"group")]


def test_a_copy_belongs_to_who_adopts_it(tmp_path: Path) -> None:
    with filled(tmp_path / "m1") as store:
        copy = copied(store, tmp_path / "copy")
    with pytest.raises(ForeignDataFolder):
        Store(copy, M2)
    Store(copy, M2, adopt=True).close()
    with Store(copy, M2) as mine:
        assert mine.get(Family.DATA, b"%08d" % 3) == bytes(3)
    with pytest.raises(ForeignDataFolder):
        Store(copy, StoreIdentity(group="other", member="m2"), adopt=True)


def test_an_empty_folder_is_no_copy(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormat):
        Store(tmp_path, M2, adopt=True)


def test_a_checkpoint_over_something_is_refused(tmp_path: Path) -> None:
    with filled(tmp_path / "m1") as store:
        copied(store, tmp_path / "copy")
        with pytest.raises(CorruptStore, match="exists"):
            store.checkpoint(tmp_path / "copy" / ROCKSDB_FOLDER)
        assert store.get(Family.RELAY, integer_key(7)) == b"group", "the store goes on"


def test_tables_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    store = filled(tmp_path / "m1")
    shutil.rmtree(tmp_path / "m1")
    with pytest.raises((CorruptStore, DiskFull)):
        store.flush_tables()


def test_a_store_that_closes_lets_the_table_that_is_written_end(tmp_path: Path) -> None:
    store = Store(tmp_path, M1)
    with writing(store) as batch:
        for number in range(4_000):
            batch.put(Family.META, b"%08d" % number, bytes(4_096))
            batch.put(Family.DATA, b"%08d" % number, b"row")
    begun, table = threading.Event(), store._readers[Family.META]

    class Told:
        def flush(self) -> None:
            begun.set()
            table.flush()

    store._readers[Family.META] = Told()  # type: ignore[assignment]  # the table, and the event
    problems: list[Exception] = []

    def flush() -> None:
        try:
            store.flush_tables()
        except Exception as error:
            problems.append(error)

    flushing = threading.Thread(target=flush)
    flushing.start()
    begun.wait()
    store.close()
    flushing.join()
    assert not problems
    with Store(tmp_path, M1) as again:
        assert sum(1 for _ in again.scan(Family.DATA)) == 4_000


def test_the_digest_is_of_the_content_not_of_the_owner_or_the_files(tmp_path: Path) -> None:
    with filled(tmp_path / "m1") as store:
        first = copied(store, tmp_path / "first")
        store.flush_tables()
        second = copied(store, tmp_path / "second")
        put(store, Family.DATA, (b"%08d" % 3, b"other"))
        third = copied(store, tmp_path / "third")
        put(
            store,
            Family.BINARY_LOG,
            (integer_key(1), bytes(PAGE_BYTES)),
            (integer_key(2), b"a group"),
        )
        fourth = copied(store, tmp_path / "fourth")
    Store(second, M2, adopt=True).close()
    counted: list[int] = []
    before = sorted((first / ROCKSDB_FOLDER).iterdir())
    digest = content_digest(first, lambda family, keys: counted.append(len(keys)))
    assert sorted((first / ROCKSDB_FOLDER).iterdir()) == before, "reading leaves no trace"
    assert sum(counted) > ROWS
    assert digest == content_digest(second) != content_digest(third)
    assert content_digest(fourth) not in (digest, content_digest(third))


def test_the_digest_of_a_copy_writes_nothing_in_its_folder(tmp_path: Path) -> None:
    """A backup may be on a file system that is read-only."""
    with filled(tmp_path / "m1") as store:
        copy = copied(store, tmp_path / "copy")
    before = {path: path.stat().st_mtime_ns for path in (copy, *copy.rglob("*"))}
    assert content_digest(copy)
    assert before == {path: path.stat().st_mtime_ns for path in (copy, *copy.rglob("*"))}


def test_a_store_is_read_without_a_trace_in_its_folder(tmp_path: Path) -> None:
    with filled(tmp_path / "m1") as store:
        copy = copied(store, tmp_path / "copy")
        expected = list(store.scan(Family.DATA))
    before = {path: path.stat().st_mtime_ns for path in (copy, *copy.rglob("*"))}
    with reading(copy) as reader:
        assert list(reader.scan(Family.DATA)) == expected
        assert reader.get(Family.DATA, expected[0][0]) == expected[0][1]
        assert reader.get(Family.DATA, b"nobody") is None
    assert before == {path: path.stat().st_mtime_ns for path in (copy, *copy.rglob("*"))}
    flip(largest_table(copy))
    with reading(copy) as reader, pytest.raises(CorruptStore, match="checksum"):
        for key, _ in expected:
            reader.get(Family.DATA, key)


def test_a_block_that_cannot_be_read_ends_no_scan_quietly(tmp_path: Path) -> None:
    with filled(tmp_path / "m1") as store:
        copy = copied(store, tmp_path / "copy")
    flip(largest_table(copy))
    with pytest.raises(CorruptStore, match="checksum"):
        content_digest(copy)
    with Store(copy, M1) as store, pytest.raises(CorruptStore, match="checksum"):
        list(store.scan(Family.DATA))


def test_families_of_a_checkpoint_are_emptied_and_their_files_go(tmp_path: Path) -> None:
    with filled(tmp_path / "m1") as store:
        store.flush_tables()
        put(store, Family.META, (b"key", b"value"))
        copy = copied(store, tmp_path / "copy")
        size = largest_table(copy).stat().st_size
        drop_families(copy, [Family.DATA])
        assert largest_table(copy).stat().st_size < size
        assert len(list(store.scan(Family.DATA))) == ROWS, "the store's own files stay"
    with Store(copy, M1) as again:
        assert list(again.scan(Family.DATA)) == []
        assert list(again.scan(Family.RELAY)) == [(integer_key(7), b"group")]
        assert again.get(Family.META, b"key") == b"value"


def test_families_of_a_copy_that_cannot_be_changed_are_an_error(tmp_path: Path) -> None:
    with filled(tmp_path / "m1") as store:
        copy = copied(store, tmp_path / "copy")
    with pytest.raises(CorruptStore):
        drop_families(copy, [Family.META])
