"""A server that is read-only while it is out of its group, and what its database had before."""

import asyncio

import psycopg
import pytest

from groupcert.members.postgresql.attachment import attach, detach
from groupcert.members.postgresql.database import Database
from groupcert.members.postgresql.standing import Standing
from tests.integration.waiting import wait_for


def read_only(dsn: str) -> str:
    """What a new session begins with."""
    with psycopg.connect(dsn) as session:
        row = session.execute("SHOW default_transaction_read_only").fetchone()
    assert row is not None
    return str(row[0])


def settings(dsn: str) -> list[tuple[object, ...]]:
    """What the database sets for new sessions."""
    with psycopg.connect(dsn) as session:
        query = (
            "SELECT setconfig FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase"
            " WHERE datname = current_database()"
        )
        return session.execute(query).fetchall()


@pytest.mark.parametrize("before", ["", "off"])
@pytest.mark.parametrize("how", ["its next member", "detach"])
async def test_what_the_database_had_before_is_set_again(
    postgresql_dsn: str, before: str, how: str
) -> None:
    with psycopg.connect(postgresql_dsn, autocommit=True) as session:
        session.execute("CREATE TABLE things (id int PRIMARY KEY)")
        name = session.info.dbname
        if before:
            session.execute(
                f"ALTER DATABASE {name} SET default_transaction_read_only TO off".encode()
            )
    attach(postgresql_dsn, ["public.*"])
    had = settings(postgresql_dsn)
    database = await Database(postgresql_dsn).open()
    standing = Standing(database)
    await standing.leave("member m1 is gone")
    await standing.leave("member m1 is fenced")
    assert read_only(postgresql_dsn) == "on"
    assert await database.run("SELECT out_of_group FROM groupcert.settings") == [
        ("member m1 is fenced",)
    ]
    if how == "detach":
        await database.close()
        detach(postgresql_dsn)
    else:
        await Standing(database).serve()
        await database.close()
    assert read_only(postgresql_dsn) == "off"
    assert settings(postgresql_dsn) == had


async def test_two_that_have_it_leave_at_once_do_not_make_it_read_only_for_good(
    postgresql_dsn: str,
) -> None:
    """Its member as it is stopped, and the watch over it, when a server goes on after a stop."""
    with psycopg.connect(postgresql_dsn) as session:
        session.execute("CREATE TABLE things (id int PRIMARY KEY)")
    attach(postgresql_dsn, ["public.*"])
    database = await Database(postgresql_dsn).open()
    standing = Standing(database)
    with psycopg.connect(postgresql_dsn) as watch, psycopg.connect(postgresql_dsn) as looks:
        looks.autocommit = True
        watch.execute("SELECT groupcert.leave_group('its member has died')")
        leaves = asyncio.create_task(standing.leave("its member was stopped", keeps_reason=True))
        query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await asyncio.to_thread(
            wait_for, "it waits for the other", lambda: looks.execute(query).fetchall()
        )
        watch.commit()
        await leaves
    assert standing.reason == "its member has died"
    await standing.serve()
    await database.close()
    assert read_only(postgresql_dsn) == "off"
