"""Rows of a real server as they are compared: as the group carries them, from one snapshot.

Aim: what `rows T` gives is what `changes T` would give of the same rows, whatever type a column or
a key has; and rows that a snapshot does not protect are given up, never taken for others.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from psycopg import sql

from groupcert.members.errors.membership import NotComparable
from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.database import Database
from groupcert.members.postgresql.functions import PAGE_BYTES, PAGE_ROWS, function_of
from groupcert.members.postgresql.rehearsal import _TEXTS
from groupcert.members.postgresql.rows import key_of
from groupcert.members.postgresql.server_rows import ServerRows
from groupcert.members.postgresql.tables import KEY_TYPES, attached_tables, quoted

pytestmark = pytest.mark.database

KEYS = """
CREATE TYPE colour AS ENUM ('red', 'green', 'blue');
CREATE TABLE coloured (colour colour, name text COLLATE "C", at timestamptz, note text,
    PRIMARY KEY (name, colour, at));
INSERT INTO coloured SELECT colour, name, at::timestamptz, at
    FROM unnest('{red,green,blue}'::colour[]) colour, unnest(ARRAY['a/b', '%2F', '', 'é']) name,
    unnest('{infinity,2026-01-01,0044-03-15 BC}'::text[]) at;
CREATE TABLE digits (key numeric(78, 0), code char(4), "100%" int, PRIMARY KEY (key) DEFERRABLE);
INSERT INTO digits SELECT 10::numeric ^ number + number, number, number
    FROM generate_series(1, 70, 7) number;
CREATE TABLE "odd ""%s"" {}" (r int, t int, compared_key text, compared_value int,
    PRIMARY KEY (r));
INSERT INTO "odd ""%s"" {}" SELECT number, 1, 'k', number FROM generate_series(1, 9) number;
CREATE TABLE parts (id int, at date, note text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE parts_old (note text, at date NOT NULL, id int NOT NULL);
ALTER TABLE parts ATTACH PARTITION parts_old FOR VALUES FROM (MINVALUE) TO ('2000-01-01');
CREATE TABLE parts_new PARTITION OF parts FOR VALUES FROM ('2000-01-01') TO (MAXVALUE);
INSERT INTO parts SELECT number, date '1999-12-25' + number % 14, number
    FROM generate_series(1, 100) number;
"""
NUMBERS = "CREATE TABLE numbers (id int PRIMARY KEY, note text)"


@contextmanager
def rows_of(dsn: str) -> Iterator[ServerRows]:
    """The rows of the attached tables, as they are now."""

    async def opened() -> ServerRows:
        database = await Database(dsn).open()
        try:
            rows = ServerRows(await database.open_reader())
            rows.begin(0, None, database.attached)
            return rows
        finally:
            await database.close()

    with closing(asyncio.run(opened())) as rows:
        yield rows


def attached(dsn: str, schema: str) -> None:
    """Makes tables, and attaches them."""
    with psycopg.connect(dsn) as session:
        session.execute(schema.encode())
    assert attach(dsn, ["*.*"]).kept_out == {}


def carried(dsn: str) -> dict[bytes, object]:
    """The rows as `changes` hands them to the group, by their keys."""
    found: dict[bytes, object] = {}
    with psycopg.connect(dsn) as session:
        for table in attached_tables(session).values():
            function = function_of("changes", table.full_name)
            names = ", ".join(f"format('%s', {name}) AS {name}" for name in map(quoted, table.key))
            keys = f"SELECT json_agg(k) FROM (SELECT {names} FROM {table.quoted}) k"
            query = f"SELECT {function}(NULL, coalesce(({keys}), '[]'))"
            for (line,) in session.execute(query.encode()).fetchall():
                if line[0] == "+":
                    key, _, value = line[1:].partition("\n")
                    found[json.loads(key).encode()] = json.loads(value)
    return found


def test_rows_of_each_type_are_those_that_the_group_carries(postgresql_dsn: str) -> None:
    with psycopg.connect(postgresql_dsn) as session:
        for number, (name, texts) in enumerate(_TEXTS.items()):
            values = [*texts, None]
            table = sql.Identifier(f"of_{number}")
            own = sql.SQL(name)
            session.execute(
                sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, value {})").format(table, own)
            )
            for place, value in enumerate(values):
                session.execute(
                    sql.SQL("INSERT INTO {} VALUES ({}, {})").format(table, place, value)
                )
            if name in KEY_TYPES:
                keys = sql.Identifier(f"by_{number}")
                session.execute(sql.SQL("CREATE TABLE {} (id {} PRIMARY KEY)").format(keys, own))
                for value in texts:
                    session.execute(sql.SQL("INSERT INTO {} VALUES ({})").format(keys, value))
    attached(postgresql_dsn, KEYS)
    expected = carried(postgresql_dsn)
    assert len(expected) > 250
    with rows_of(postgresql_dsn) as rows:
        found = [(key, json.loads(value)) for key, value in rows.scan()]
        assert len(found) == len(expected)
        assert dict(found) == expected
        for place, (key, _) in enumerate(found):
            behind = [key for key, _ in rows.scan(key + b"\0")]
            assert behind == [key for key, _ in found[place + 1 :]]


def test_pages_end_by_rows_and_by_bytes(postgresql_dsn: str) -> None:
    attached(
        postgresql_dsn,
        f"{NUMBERS}; INSERT INTO numbers SELECT number, CASE WHEN number % 1000 = 7 THEN"
        f" repeat('a', {PAGE_BYTES}) END FROM generate_series(1, {3 * PAGE_ROWS}) number",
    )
    with rows_of(postgresql_dsn) as rows:
        keys = [key for key, _ in rows.scan()]
    assert keys == [b"public.numbers/%d" % number for number in range(1, 3 * PAGE_ROWS + 1)]


def test_values_do_not_depend_on_the_order_of_columns(postgresql_dsn: str) -> None:
    attached(
        postgresql_dsn,
        "CREATE SCHEMA here; CREATE SCHEMA there; CREATE TABLE here.t (id int PRIMARY KEY, b text,"
        ' a text, "Z" int); CREATE TABLE there.t ("Z" int, a text, id int PRIMARY KEY);'
        " ALTER TABLE there.t ADD b text; INSERT INTO here.t VALUES (1, 'b', 'a', 2);"
        " INSERT INTO there.t VALUES (2, 'a', 1, 'b')",
    )
    with rows_of(postgresql_dsn) as rows:
        (_, here), (_, there) = rows.scan()
    assert here == there == b'{"Z":2,"a":"a","b":"b","id":1}'


def test_rows_are_those_of_the_snapshot_and_nobody_waits_for_them(postgresql_dsn: str) -> None:
    attached(
        postgresql_dsn,
        f"{NUMBERS}; INSERT INTO numbers SELECT generate_series(1, {2 * PAGE_ROWS})",
    )
    with rows_of(postgresql_dsn) as rows:
        reading = rows.scan()
        next(reading)
        with psycopg.connect(postgresql_dsn) as session:
            session.execute("SET session_replication_role TO replica; SET lock_timeout TO '1s'")
            session.execute("UPDATE numbers SET note = 'later'; DELETE FROM numbers WHERE id > 9")
            session.execute("LOCK numbers")  # No page of them is read now.
        assert len([*reading]) == 2 * PAGE_ROWS - 1
        assert all(value == b'{"id":%d,"note":null}' % int(key[15:]) for key, value in rows.scan())


@pytest.mark.parametrize(
    "statement",
    ["TRUNCATE numbers", "VACUUM FULL numbers", "TRUNCATE parts_old", "CLUSTER numbers"],
)
def test_rows_that_the_snapshot_does_not_protect_are_given_up(
    postgresql_dsn: str, statement: str
) -> None:
    attached(postgresql_dsn, f"{KEYS} {NUMBERS}; ALTER TABLE numbers CLUSTER ON numbers_pkey")
    with rows_of(postgresql_dsn) as rows:
        assert len([*rows.scan()]) > 100
        with psycopg.connect(postgresql_dsn, autocommit=True) as session:
            session.execute("SET session_replication_role TO replica; SET lock_timeout TO '1s'")
            session.execute(statement.encode())
        with pytest.raises(NotComparable, match="was truncated or written anew meanwhile"):
            [*rows.scan()]


def test_a_key_that_no_row_can_have_is_an_answer(postgresql_dsn: str) -> None:
    attached(postgresql_dsn, NUMBERS)
    with rows_of(postgresql_dsn) as rows:
        for key in (b"public.numbers/\xff", b"public.numbers/seven"):
            with pytest.raises(NotComparable):
                [*rows.scan(key)]


def test_rows_at_another_version_are_not_taken(postgresql_dsn: str) -> None:
    attached(postgresql_dsn, NUMBERS)
    with psycopg.connect(postgresql_dsn) as session:
        session.execute("INSERT INTO groupcert.executed VALUES (1, 's', 1, 1)")
    with pytest.raises(NotComparable, match="not at version 0"), rows_of(postgresql_dsn):
        pass


def test_a_key_is_read_back_from_its_text(postgresql_dsn: str) -> None:
    attached(postgresql_dsn, KEYS)
    with psycopg.connect(postgresql_dsn) as session:
        tables = attached_tables(session)
    with rows_of(postgresql_dsn) as rows:
        for key, value in rows.scan():
            table = tables[key.partition(b"/")[0].decode()]
            row = json.loads(value)
            texts = {name: str(row[name]) for name in table.key}
            assert key_of(table, key) == texts
