"""A real store in a folder of its own; a fresh database of each SQL server."""

import pytest

from tests.applier.sql_databases import Database
from tests.stores import store

__all__ = ["store"]


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    """A fresh database of each server, with two tables."""
    kind = request.param
    fixture = "target_dsn" if kind == "postgresql" else "mariadb_url"
    return Database(kind, request.getfixturevalue(fixture))
