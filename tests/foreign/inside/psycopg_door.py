"""Has psycopg's tests use tables that are at all servers of the group."""

import os
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection
from typing import Any

import psycopg
import pytest
from pytest_outcomes import note

_door: list[Connection] = []
_tables: dict[str, str] = {}


def ask(*call: object) -> Any:
    """Calls the group."""
    if not _door:
        key = os.environ["FOREIGN_KEY"].encode()
        _door.append(Client(os.environ["FOREIGN_DOOR"], authkey=key))
    _door[0].send(call)
    is_done, result = _door[0].recv()
    assert is_done, result
    return result


def ensure_table(_cursor: object, definition: str, name: str = "copy_in") -> None:
    """Makes a table at all servers, or empties it if it is the one that is there."""
    if _tables.get(name) == definition:
        with psycopg.connect(os.environ["FOREIGN_DSN"]) as session:
            session.execute(f"DELETE FROM {name}".encode())
            session.execute(
                b"SELECT setval(pg_get_serial_sequence(attrelid::regclass::text, attname), 1, false)"
                b" FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 1"
                b" AND pg_get_serial_sequence(attrelid::regclass::text, attname) IS NOT NULL",
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
    if "FOREIGN_DOOR" not in os.environ:
        return
    for module in {item.module for item in session.items}:
        for function in (ensure_table, ensure_table_async):
            if hasattr(module, function.__name__):
                setattr(module, function.__name__, function)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> object:
    """Makes the table of the tests of transactions."""
    if fixturedef.argname != "create_test_table" or "FOREIGN_DOOR" not in os.environ:
        return None
    ensure_table(None, "id text primary key", "test_table")
    fixturedef.cached_result = ((), fixturedef.cache_key(request), None)
    return ()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: Any) -> Iterator[None]:
    """Compares rows behind each test."""
    yield
    if "FOREIGN_DOOR" in os.environ:
        differ = ask("differences")
        if differ:
            note(item.nodeid, "rows", [(None, f"rows differ: {', '.join(differ)}")])
