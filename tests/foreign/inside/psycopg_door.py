"""Has psycopg's tests use tables that are at all servers of the group."""

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from door_call import ask, has_group, note  # type: ignore[import-not-found]

_tables: dict[str, str] = {}


def ensure_table(_cursor: object, definition: str, name: str = "copy_in") -> None:
    """Makes a table at all servers, or empties it if it is the one that is there."""
    if _tables.get(name) == definition:
        with psycopg.connect(os.environ["FOREIGN_DSN"]) as session:
            session.execute(f"DELETE FROM {name}".encode())
            session.execute(
                b"SELECT setval(sequence, 1, false) FROM pg_attribute,"
                b" pg_get_serial_sequence(attrelid::regclass::text, attname) sequence"
                b" WHERE attrelid = %s::regclass AND attnum = 1 AND sequence IS NOT NULL",
                (name,),
            )
        return
    refused = ask("change", f"DROP TABLE IF EXISTS {name}; CREATE TABLE {name} ({definition})")
    assert not refused, refused
    _tables[name] = definition


async def ensure_table_async(cursor: object, definition: str, name: str = "copy_in") -> None:
    """The same for tests that await it."""
    ensure_table(cursor, definition, name)


def pytest_collection_finish(session: Any) -> None:
    """Puts these in the place of psycopg's own."""
    if not has_group():
        return
    for module in {item.module for item in session.items}:
        for function in (ensure_table, ensure_table_async):
            if hasattr(module, function.__name__):
                setattr(module, function.__name__, function)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> object:
    """Makes the table of the tests of transactions."""
    if fixturedef.argname != "create_test_table" or not has_group():
        return None
    ensure_table(None, "id text primary key", "test_table")
    fixturedef.cached_result = ((), fixturedef.cache_key(request), None)
    return ()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: Any) -> Iterator[None]:
    """Compares rows behind each test."""
    yield
    if has_group():
        differ = ask("differences")
        if differ:
            note(item.nodeid, "rows", [(None, f"rows differ: {', '.join(differ)}")])
