"""A real store in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from certifier.store import Store, StoreIdentity


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path, StoreIdentity(group="g", member="m1")) as opened:
        yield opened
