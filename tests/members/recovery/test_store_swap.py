"""A copy replaces a store as a whole, wherever the process that did it was stopped."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from groupcert.certifier.storage.info_store import CertificationInfoStore
from groupcert.certifier.storage.store import ROCKSDB_FOLDER, Family, Store, StoreIdentity
from groupcert.members.errors.recovery import CorruptCopy
from groupcert.members.recovery import store_swap
from tests.members.recovery.test_manifest import EMPTY
from tests.stores import put

M1 = StoreIdentity(group="g", member="m1")
M3 = StoreIdentity(group="g", member="m3")


def prepared(tmp_path: Path) -> Path:
    """A data folder of m3 with a store of its own, and a copy of m1's that came in."""
    folder = tmp_path / "m3"
    with Store(folder, M3) as own:
        put(own, Family.META, (b"row", b"own"))
    with Store(tmp_path / "m1", M1) as donor:
        put(donor, Family.META, (b"row", b"donor's"))
        digest = json.dumps({"digest": EMPTY.certification_digest}).encode()
        put(donor, Family.META, (CertificationInfoStore.CHECKPOINT_KEY, digest))
        donor.checkpoint(store_swap.begin(folder) / ROCKSDB_FOLDER)
    return folder


def row_of(folder: Path) -> bytes | None:
    with Store(folder, M3) as store:
        return store.get(Family.META, b"row")


def test_an_adopted_copy_replaces_the_store_and_leaves_nothing(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    store_swap.adopt(folder, EMPTY, M3)
    assert row_of(folder) == b"own", "nothing is replaced yet"
    assert store_swap.finish(folder)
    assert row_of(folder) == b"donor's"
    assert [path.name for path in folder.iterdir()] == [ROCKSDB_FOLDER]
    assert not store_swap.finish(folder)


def test_a_copy_that_was_not_adopted_replaces_nothing(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    assert not store_swap.finish(folder)
    assert row_of(folder) == b"own"
    assert not any(store_swap.begin(folder).iterdir())


def test_a_replacement_that_was_stopped_is_finished(tmp_path: Path) -> None:
    """Between its two renames, and after them."""
    folder = prepared(tmp_path)
    store_swap.adopt(folder, EMPTY, M3)
    (folder / ROCKSDB_FOLDER).rename(folder / "replaced")
    assert store_swap.finish(folder)
    assert row_of(folder) == b"donor's"
    (folder / "adopted").mkdir()
    (folder / "replaced").mkdir()
    assert not store_swap.finish(folder)
    assert [path.name for path in folder.iterdir()] == [ROCKSDB_FOLDER]


def test_a_copy_of_another_place_or_group_is_not_adopted(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    with pytest.raises(CorruptCopy, match="certification info has the digest 0f"):
        store_swap.adopt(folder, replace(EMPTY, certification_digest="aa"), M3)
    with pytest.raises(CorruptCopy, match="belongs to"):
        store_swap.adopt(folder, EMPTY, StoreIdentity(group="other", member="m3"))
    assert not store_swap.finish(folder)
    assert row_of(folder) == b"own"
