"""Stores of tests, and what is put into them by hand, in one batch each."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupcert.certifier.storage.store import Batch, Family, Store, StoreIdentity

IDENTITY = StoreIdentity(group="g", member="m1")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store in the test's folder; `conftest.py` of a package has it for its tests."""
    with Store(tmp_path, IDENTITY) as opened:
        yield opened


@contextmanager
def writing(store: Store) -> Iterator[Batch]:
    """A batch, which is written at the end of the block."""
    batch = store.batch()
    yield batch
    store.write(batch)


def put(store: Store, family: Family, *pairs: tuple[bytes, bytes]) -> None:
    """Writes keys and values."""
    with writing(store) as batch:
        for key, value in pairs:
            batch.put(family, key, value)
