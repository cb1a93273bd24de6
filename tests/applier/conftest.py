"""A real store in a folder of its own; a fresh database of each SQL server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from certifier.store import Store, StoreIdentity
from tests.applier.sql_databases import Database


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path, StoreIdentity(group="g", member="m1")) as opened:
        yield opened


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    """A fresh database of each server, with two tables."""
    kind = request.param
    fixture = "postgresql_dsn" if kind == "postgresql" else "mariadb_url"
    return Database(kind, request.getfixturevalue(fixture))
