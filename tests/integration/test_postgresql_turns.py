"""The companion's sessions at a server: what is executed behind a backend that has its turn."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from groupcert.certifier.gtid import Gtid
from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.commit_order import Entry
from groupcert.members.postgresql.database import LOCK_CLASS, Database
from groupcert.members.wire.row_changes import encode_changes

pytestmark = pytest.mark.database
ENTRY = Entry(3, Gtid("s", 3), encode_changes([b"public.item/1"], [b'{"id": 1, "kind": "ab"}']))


@pytest.fixture
def dsn(postgresql_dsn: str) -> Iterator[str]:
    """An attached database."""
    with psycopg.connect(postgresql_dsn) as session:
        session.execute("CREATE TABLE item (id int PRIMARY KEY, kind char(4))")
    attach(postgresql_dsn, ["public.*"])
    yield postgresql_dsn


def begun(session: "psycopg.Connection[Any]") -> str:
    """Begins what a backend at its COMMIT has: a transaction with its advisory lock."""
    ((transaction_id, _),) = session.execute(
        "SELECT pg_current_xact_id()::text, pg_advisory_xact_lock(%s,"
        " (pg_current_xact_id()::text::bigint & 2147483647)::int)",
        (LOCK_CLASS,),
    ).fetchall()
    return str(transaction_id)


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "dies"])
def test_an_entry_is_executed_behind_a_backend_only_if_that_commits(
    dsn: str, commits: bool
) -> None:
    def make_way(_pid: int) -> None:
        raise AssertionError("nobody stands in the way")

    async def run(backend: "psycopg.Connection[Any]", watcher: "psycopg.Connection[Any]") -> bool:
        database = await Database(dsn).open()
        try:
            task = asyncio.create_task(database.execute([ENTRY], begun(backend), make_way))
            waits = "SELECT count(*) FROM pg_locks WHERE classid = %s AND NOT granted"
            async with asyncio.timeout(60):
                while watcher.execute(waits, (LOCK_CLASS,)).fetchall() != [(1,)]:  # noqa: ASYNC110
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
