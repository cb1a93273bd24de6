"""Cursors WITH HOLD of PostgreSQL servers: computed before the turn, whatever meddles with them."""

from contextlib import ExitStack, closing, suppress

import psycopg
import pytest

from tests.integration.postgresql_group import Commit, PostgresqlGroup, balances, conflict_of
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.in_turns]


def test_a_cursor_with_hold_is_computed_before_its_transaction_has_its_turn(
    servers3: PostgresqlGroup, stack: ExitStack
) -> None:
    first, second, _ = servers3.primaries
    before = balances(servers3)
    locker = stack.enter_context(closing(psycopg.connect(first.dsn)))
    locker.execute("SELECT pg_advisory_lock(9)")
    session = stack.enter_context(closing(first.connect()))
    session.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 16")
    session.execute(
        "DECLARE slow CURSOR WITH HOLD FOR SELECT id, pg_advisory_lock_shared(9)::text"
        " FROM accounts WHERE id = 16"
    )
    commit = Commit(session)
    waits = f"SELECT FROM pg_locks WHERE pid = {commit.pid} AND NOT granted"
    wait_for("it computes the cursor", lambda: locker.execute(waits.encode()).fetchall())
    for account, primary in ((17, first), (18, second)):
        primary.query(f"UPDATE accounts SET balance = balance + 1 WHERE id = {account}")
    assert balances(servers3) == before | {17: before[17] + 1, 18: before[18] + 1}
    locker.execute("SELECT pg_advisory_unlock(9)")
    assert commit.ended() is None
    assert session.execute("FETCH ALL FROM slow").fetchall() == [(16, "")]
    assert session.execute("SELECT name FROM pg_cursors").fetchall() == [("slow",)]
    session.rollback()
    assert balances(servers3)[16] == before[16] + 1


def test_cursors_of_a_transaction_that_fails_are_closed(servers3: PostgresqlGroup) -> None:
    """It runs again, and declares them again."""
    first, second, _ = servers3.primaries
    declare = "DECLARE slow CURSOR WITH HOLD FOR SELECT 1"
    with first.connect() as session, second.connect() as other:
        for each in (session, other):
            each.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 16")
            each.execute(declare)
        assert conflict_of(servers3, session, other).sqlstate == "40001"
        other.rollback()
        other.execute("SET timezone TO 'Asia/Tokyo'")
        other.execute("INSERT INTO things (name, at) VALUES ('late', '2026-03-02 08:30')")
        other.execute(declare)
        with pytest.raises(psycopg.errors.CheckViolation):
            other.commit()
        other.rollback()
        assert other.execute("SELECT name FROM pg_cursors").fetchall() == []
        assert session.execute("FETCH ALL FROM slow").fetchall() == [(1,)]
    servers3.settle()


def test_a_block_that_commits_may_hold_cursors(servers3: PostgresqlGroup) -> None:
    first = servers3.primaries[0]
    before = balances(servers3)[16]
    with psycopg.connect(first.dsn, autocommit=True) as session:
        session.execute("""
            DO $$ DECLARE r record; BEGIN
                FOR r IN SELECT number FROM generate_series(1, 3) number LOOP
                    EXECUTE format('DECLARE held_%s CURSOR WITH HOLD FOR SELECT 1', r.number);
                    UPDATE accounts SET balance = balance + 1 WHERE id = 16;
                    COMMIT;
                END LOOP;
            END $$""")
        held = session.execute("SELECT name FROM pg_cursors ORDER BY 1").fetchall()
    assert held == [("held_1",), ("held_2",), ("held_3",)]
    assert balances(servers3)[16] == before + 3


MEDDLING = """
CREATE FUNCTION pg_temp.meddled() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    found text;
BEGIN
    FOR found IN SELECT name FROM pg_cursors WHERE name LIKE 'groupcert %' LOOP
        BEGIN {}; EXCEPTION WHEN OTHERS THEN NULL; END;
    END LOOP;
    RETURN 1;
END $$;
CREATE FUNCTION pg_temp.meddling() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_temp.meddled();
    INSERT INTO pg_temp.again SELECT NEW.number + 1 WHERE NEW.number < 20;
    RETURN NULL;
END $$;
CREATE TEMPORARY TABLE again (number int);
CREATE CONSTRAINT TRIGGER again AFTER INSERT ON again DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
EXECUTE FUNCTION pg_temp.meddling();
"""


@pytest.mark.parametrize(
    "way",
    [
        "EXECUTE 'CLOSE ALL'",
        "EXECUTE format('CLOSE %I', found)",
        "EXECUTE format('FETCH ALL FROM %I', found)",
        "EXECUTE format('FETCH ALL FROM %I', found); RAISE EXCEPTION 'undone'",
        "EXECUTE format('MOVE ALL FROM %I', found); SET CONSTRAINTS ALL IMMEDIATE",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "UPDATE accounts SET balance = balance + 1 WHERE id = 19",
    ],
)
@pytest.mark.parametrize("when", ["a cursor", "a trigger"])
def test_code_that_meddles_with_the_cursors_of_its_commit_commits_everywhere_or_nowhere(
    servers3: PostgresqlGroup, stack: ExitStack, way: str, when: str
) -> None:
    first = servers3.primaries[0]
    session = stack.enter_context(closing(first.connect()))
    session.execute(MEDDLING.format(way).encode())
    session.execute("DECLARE held CURSOR WITH HOLD FOR SELECT 1")
    if when == "a cursor":
        session.execute("DECLARE meddling CURSOR WITH HOLD FOR SELECT pg_temp.meddled()")
    else:
        session.execute("INSERT INTO again VALUES (1)")
    session.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 19")
    with suppress(psycopg.Error):
        session.commit()
    assert servers3.settle()
