"""The member's sessions at a server: what is executed behind a backend that has its turn."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from groupcert.certifier.gtid import Gtid
from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.commit_order import Entry
from groupcert.members.postgresql.database import Database
from groupcert.members.postgresql.statements import batch_of
from groupcert.members.wire.row_changes import encode_changes
from groupcert.v1.transaction_pb2 import Changes

pytestmark = pytest.mark.database
KEYS, VALUES = [b"public.item/1"], [b'{"id": 1, "kind": "ab"}']
GTID = Gtid("s", 3)
ENTRIES = {
    "one statement": Entry(3, GTID, [encode_changes(KEYS, VALUES)]),
    "several": Entry(
        3,
        GTID,
        [
            Changes(
                put_keys=KEYS, put_values=VALUES, delete_keys=[b"public.item/9"]
            ).SerializeToString()
        ],
    ),
}
KINDS = {
    "id": "7",
    "price": "1.50",
    "weight": "-Infinity",
    "name": 'a "b" \\ é',
    "code": "ab",
    "bits": "101",
    "data": "\\x00ff",
    "tags": '{{a,"b c"},{d,NULL}}',
    "at": "2026-03-02 04:05:06.789+00",
    "took": "1 day 02:00:00",
    "is_old": "true",
    "colour": "green",
    "span": "[1,5)",
    "nothing": None,
}
"""A row of many types, as its texts."""


@pytest.fixture
def dsn(postgresql_dsn: str) -> Iterator[str]:
    """An attached database."""
    with psycopg.connect(postgresql_dsn) as session:
        session.execute("CREATE TABLE item (id int PRIMARY KEY, kind char(4))")
        session.execute("CREATE TYPE colour AS ENUM ('red', 'green')")
        session.execute(
            "CREATE TABLE kinds (id bigint PRIMARY KEY, price numeric(10, 2), weight float8,"
            " name varchar(20), code char(4), bits bit(3), data bytea, tags text[], at timestamptz,"
            " took interval, is_old boolean, colour colour, span int4range, nothing text)"
        )
    attach(postgresql_dsn, ["public.*"])
    yield postgresql_dsn


def begun(session: "psycopg.Connection[Any]") -> str:
    """Begins what a backend at its COMMIT has: a transaction that others may wait for."""
    ((transaction_id,),) = session.execute(
        "INSERT INTO groupcert.ends VALUES (pg_current_xact_id()) RETURNING transaction_id::text"
    ).fetchall()
    return str(transaction_id)


def make_way(_pid: int) -> None:
    raise AssertionError("nobody stands in the way")


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "dies"])
def test_an_entry_is_executed_behind_a_backend_only_if_that_commits(
    dsn: str, commits: bool, entry: Entry
) -> None:
    async def run(backend: "psycopg.Connection[Any]", watcher: "psycopg.Connection[Any]") -> bool:
        database = await Database(dsn).open()
        try:
            task = asyncio.create_task(
                database.execute(batch_of([entry]), begun(backend), make_way)
            )
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
            async with asyncio.timeout(60):
                while watcher.execute(waits).fetchall() != [(1,)]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            if commits:
                backend.commit()
            else:
                backend.rollback()
            return await task
        finally:
            await database.close()

    with ExitStack() as stack:
        backend = stack.enter_context(closing(psycopg.connect(dsn)))
        watcher = stack.enter_context(closing(psycopg.connect(dsn, autocommit=True)))
        assert asyncio.run(run(backend, watcher)) is commits
        rows = watcher.execute("SELECT id, kind FROM item").fetchall()
        versions = watcher.execute("SELECT version FROM groupcert.executed").fetchall()
    assert rows == ([(1, "ab  ")] if commits else [])
    assert versions == ([(3,)] if commits else [])


def test_rows_of_all_types_are_put_at_once(dsn: str) -> None:
    payload = encode_changes([b"public.kinds/7"], [json.dumps(KINDS).encode()])

    async def execute() -> None:
        database = await Database(dsn).open()
        try:
            assert await database.execute(batch_of([Entry(3, GTID, [payload])]), None, make_way)
        finally:
            await database.close()

    asyncio.run(execute())
    texts = ", ".join(f"{name}::text" for name in KINDS)
    with psycopg.connect(dsn) as session:
        session.execute("SET timezone TO 'UTC'")
        found = session.execute(f"SELECT {texts} FROM kinds".encode()).fetchall()
    assert found == [tuple(KINDS.values())]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("late (id int PRIMARY KEY)", "is not attached"),
        ("late (id int)", "is kept out here: it has no primary key"),
    ],
    ids=["not yet", "kept out"],
)
def test_a_table_that_is_attached_meanwhile_is_found_and_another_one_is_an_error(
    dsn: str, table: str, problem: str
) -> None:
    batch = batch_of([Entry(3, GTID, [encode_changes([b"public.late/1"], [b'{"id": 1}'])])])

    async def execute(session: "psycopg.Connection[Any]") -> None:
        database = await Database(dsn).open()
        try:
            session.execute(f"CREATE TABLE {table}".encode())
            with pytest.raises(KeyError, match=f"table public.late {problem}; .*attach --tables"):
                await database.execute(batch, None, make_way)
            assert session.execute("SELECT FROM groupcert.executed").fetchall() == []
            session.execute("ALTER TABLE late DROP id, ADD id int PRIMARY KEY")
            attach(dsn, ["public.late"])
            assert await database.execute(batch, None, make_way)
        finally:
            await database.close()

    with closing(psycopg.connect(dsn, autocommit=True)) as session:
        asyncio.run(execute(session))
        assert session.execute("SELECT id FROM late").fetchall() == [(1,)]
