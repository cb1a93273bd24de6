"""PostgreSQL servers as primaries: what clients of theirs see, through conflicts and crashes.

Aim: no acknowledged commit is lost, none is doubled, and all servers have the same rows. Where a
test needs a transaction between its verdict and its commit, it stops the member, then the backend.
"""

import json
import os
import random
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from groupcert.certifier.errors import NotServing
from groupcert.members.commands.cli import app
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.postgresql.attachment import attach, detach
from groupcert.members.postgresql.sequences import Numbering
from groupcert.members.postgresql.status import ask_member
from groupcert.v1.postgresql_pb2 import PostgresqlStatus
from tests.integration.postgresql_group import (
    SERVERS_MAX,
    Commit,
    PostgresqlGroup,
    balances,
    conflict_of,
    continue_process,
    group_verb,
    has_asked,
    incremented,
    stop_process,
    waits_for_verdict,
)
from tests.integration.waiting import SECONDS_MAX, wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database]

SEED = 20
INCREMENTS = 25
READ_ONLY = "SHOW default_transaction_read_only"


def test_a_conflict_says_who_was_first(servers3: PostgresqlGroup) -> None:
    first, second, _ = servers3.primaries
    servers3.settle()
    with first.connect() as one, second.connect() as other:
        for session in (one, other):
            session.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 7")
        failure = conflict_of(servers3, one, other)
    winner = first.query("SELECT source, number, version FROM groupcert.executed ORDER BY version")
    source, number, version = winner[-1]
    detail = failure.diag.message_detail or ""
    assert detail.startswith(
        f"public.accounts/7 was written by {source}:{number} at member m1, version {version};"
    )
    assert "again" in (failure.diag.message_hint or "")
    assert balances(servers3)[7] == 101


def test_a_commit_that_is_cancelled_before_it_has_asked_runs_again(
    servers3: PostgresqlGroup,
) -> None:
    """As by a member that looked for who stands in its way just before that COMMIT began."""
    first, *_ = servers3.primaries
    before = balances(servers3)[8]
    with closing(first.connect()) as session, closing(first.connect()) as locker:
        session.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 8")
        locker.execute("LOCK TABLE groupcert.settings IN ACCESS EXCLUSIVE MODE")
        commit = Commit(session)
        waits = f"SELECT pid FROM pg_locks WHERE pid = {commit.pid} AND NOT granted"
        wait_for("it waits for its settings", lambda: locker.execute(waits.encode()).fetchall())
        locker.execute("SELECT pg_cancel_backend(%s)", (commit.pid,))
        failure = commit.ended()
        assert failure is not None and failure.sqlstate == "40001"
        locker.rollback()
        session.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 8")
        session.commit()
    assert balances(servers3)[8] == before + 1


def test_no_increment_is_lost(servers3: PostgresqlGroup) -> None:
    """Each client increments rows that all of them increment, and runs again what failed so."""
    before = sum(row[1] for row in servers3.settle()[0])

    def increment(client: int) -> None:
        choose = random.Random(SEED + client)
        accounts = (choose.randint(1, 5) for _ in range(INCREMENTS))
        assert len(list(incremented(servers3.primaries[client % 3], accounts))) == INCREMENTS

    with ThreadPoolExecutor(6) as clients:
        list(clients.map(increment, range(6)))
    assert sum(row[1] for row in servers3.settle()[0]) == before + 6 * INCREMENTS


def test_rows_of_all_types_are_equal_everywhere(servers3: PostgresqlGroup) -> None:
    first, second, third = servers3.primaries
    with first.connect() as session:
        session.execute("SET datestyle TO 'German'; SET timezone TO 'Asia/Tokyo'")
        session.execute(
            "INSERT INTO things (name, colour, price, weight, data, extra, tags, at, took, is_old)"
            " VALUES ('a/b %', 'green', 1.50, 0.1, '\\x00ff', '[null, 1]',"
            " '{{a,\"b c\"},{d,NULL}}', '02.03.2026 04:05:06.789', '1 day 02:00', true),"
            " ('', NULL, 'NaN', 'Infinity', NULL, 'null', '{}', 'infinity', NULL, NULL)"
        )
        session.execute("INSERT INTO counters (count) VALUES (1), (2)")
    servers3.settle()
    second.query("UPDATE things SET name = 'c', price = 2 WHERE name = 'a/b %'")
    third.query("DELETE FROM counters WHERE count = 1")
    _, _, things, counters, *_ = servers3.settle()
    assert [row[0] for row in things] == ["", "c"]
    assert 1 not in [row[1] for row in counters]


def test_a_row_that_others_would_refuse_is_refused_at_its_commit(
    servers3: PostgresqlGroup,
) -> None:
    with servers3.primaries[0].connect() as session:
        session.execute("SET timezone TO 'Asia/Tokyo'")
        session.execute("INSERT INTO things (name, at) VALUES ('late', '2026-03-02 08:30')")
        with pytest.raises(psycopg.errors.CheckViolation) as failure:
            session.commit()
    said = failure.value.diag
    assert "public.things would be refused at other servers" in (said.message_primary or "")
    assert "timezone = UTC" in (said.message_hint or "")
    servers3.settle()


def test_rows_that_servers_number_at_the_same_time_do_not_conflict(
    servers3: PostgresqlGroup, stack: ExitStack
) -> None:
    sessions = [stack.enter_context(closing(each.connect())) for each in servers3.primaries]
    for session in sessions:
        session.execute("INSERT INTO counters (count) SELECT 5 FROM generate_series(1, 3)")
    for session in sessions:
        session.commit()
    ids = [number for number, count in servers3.settle()[3] if count == 5]
    assert len(ids) == 9
    assert {number % SERVERS_MAX for number in ids} == {1, 2, 3}


def test_rows_of_a_savepoint_that_was_rolled_back_are_not_sent(servers3: PostgresqlGroup) -> None:
    with servers3.primaries[0].connect() as session:
        session.execute("INSERT INTO orders VALUES (1, 1, 1)")
        session.execute("SAVEPOINT here")
        session.execute("INSERT INTO orders VALUES (1, 2, 1)")
        session.execute("ROLLBACK TO SAVEPOINT here")
        session.execute("INSERT INTO orders VALUES (1, 3, 1)")
    assert [row for row in servers3.settle()[1] if row[0] == 1] == [(1, 1, 1), (1, 3, 1)]


@pytest.mark.parametrize(
    "when",
    [
        "ALL IMMEDIATE",
        "ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED",
        "groupcert.groupcert_commit IMMEDIATE",
    ],
)
def test_what_a_savepoint_has_undone_is_not_sent_though_constraints_were_checked(
    servers3: PostgresqlGroup, when: str
) -> None:
    first, second, _ = servers3.primaries
    second.query("INSERT INTO orders VALUES (40, 1, 1) ON CONFLICT DO NOTHING")
    servers3.settle()
    with first.connect() as session:
        session.execute("UPDATE orders SET account = 2 WHERE id = 40")
        session.execute("SAVEPOINT here")
        session.execute("INSERT INTO orders VALUES (41, 1, 1)")
        session.execute("DELETE FROM orders WHERE id = 40")
        session.execute(f"SET CONSTRAINTS {when}".encode())
        session.execute("ROLLBACK TO SAVEPOINT here")
        session.execute("INSERT INTO orders VALUES (42, 1, 3)")
    rows = [row for row in servers3.settle()[1] if row[0] >= 40]
    assert rows == [(40, 1, 2), (42, 1, 3)]
    second.query("DELETE FROM orders WHERE id >= 40")


def test_what_a_savepoint_has_undone_hides_no_conflict(servers3: PostgresqlGroup) -> None:
    first, second, _ = servers3.primaries
    servers3.settle()
    with first.connect() as one, second.connect() as other:
        for session, balance in ((one, 1), (other, 2)):
            session.execute("SAVEPOINT here")
            session.execute("INSERT INTO orders VALUES (43, 1, 9)")
            session.execute("SET CONSTRAINTS ALL IMMEDIATE")
            session.execute("ROLLBACK TO SAVEPOINT here")
            session.execute("UPDATE accounts SET balance = %s WHERE id = 9", (balance,))
        assert conflict_of(servers3, one, other).sqlstate == "40001"
    assert balances(servers3)[9] == 1


def test_rows_may_be_changed_behind_constraints_that_were_checked(
    servers3: PostgresqlGroup,
) -> None:
    """As Django checks them, between fixtures and before it commits."""
    with servers3.primaries[0].connect() as session:
        for statement in (
            "INSERT INTO orders VALUES (50, 1, 1)",
            "SET CONSTRAINTS ALL IMMEDIATE",
            "INSERT INTO orders VALUES (51, 1, 1)",
            "DELETE FROM orders WHERE id = 50",
            "SET CONSTRAINTS ALL DEFERRED",
            "UPDATE orders SET account = 2 WHERE id = 51",
            "SET CONSTRAINTS ALL IMMEDIATE",
            "INSERT INTO orders VALUES (52, 1, 1)",
        ):
            session.execute(statement.encode())
    rows = [row for row in servers3.settle()[1] if row[0] >= 50]
    assert rows == [(51, 1, 2), (52, 1, 1)]
    servers3.primaries[1].query("DELETE FROM orders WHERE id >= 50")


def test_the_triggers_of_the_group_are_out_of_reach(servers3: PostgresqlGroup) -> None:
    with servers3.primaries[0].connect() as session:
        session.execute("UPDATE accounts SET balance = 0 WHERE id = 20")
        for name in ("groupcert_insert", "groupcert_update"):
            with pytest.raises(psycopg.errors.Error), session.transaction():
                session.execute(f"SET CONSTRAINTS public.{name} IMMEDIATE".encode())
        session.rollback()


def test_no_lock_that_a_role_may_take_stops_commits(
    servers3: PostgresqlGroup, stack: ExitStack
) -> None:
    first, second, _ = servers3.primaries
    locker = stack.enter_context(psycopg.connect(first.dsn, autocommit=True))
    ((next_id,),) = locker.execute("SELECT pg_current_xact_id()::text::int").fetchall()
    locker.execute(
        "SELECT count(pg_advisory_lock(1735156336, id)) FROM generate_series(%s, %s + 2000) id",
        (next_id, next_id),
    )
    for _ in range(3):
        first.query("UPDATE accounts SET balance = balance WHERE id = 20")
        second.query("UPDATE accounts SET balance = balance WHERE id = 21")
    assert servers3.settle()


def test_rows_of_awkward_tables_are_equal_everywhere(servers3: PostgresqlGroup) -> None:
    """A key column that was renamed, numbers of 78 digits, names with %, a deferrable key, lower
    bounds of arrays, composites in arrays, floats that a client sees shortened.
    """
    first, second, third = servers3.primaries
    number = "12345678901234567890123456789012345678901"
    with first.connect() as session:
        session.execute("SET extra_float_digits TO -10; SET bytea_output TO 'escape'")
        for last in (1, 2):
            session.execute(
                f"INSERT INTO awkward VALUES ({number}{last}, 7, '{{\"(1,a)\",NULL}}', '10101',"
                " point(1.0 / 3, 0.1 + 0.2), '{(1.1,2.2),(0.3,0.4);(1,1),(2,2)}',"
                " '[2:4]={7,8,9}', 0.1::float4 / 3, 'x', 'ab', '{1,0}')".encode()
            )
    assert len(servers3.settle()[5]) == 2
    second.query(f'UPDATE awkward SET "50%s" = 8 WHERE key = {number}2')
    third.query(f"DELETE FROM awkward WHERE key = {number}1")
    rows = servers3.settle()[5]
    assert len(rows) == 1 and ",8," in rows[0][1] and "[2:4]={7,8,9}" in rows[0][1]
    with first.connect() as session:
        session.execute("SET CONSTRAINTS ALL DEFERRED")
        session.execute("UPDATE awkward SET key = 5")
    third.query("DELETE FROM awkward")
    assert servers3.settle()[5] == []


def test_an_entry_of_a_partial_index_conflicts_when_a_row_enters_it(
    servers3: PostgresqlGroup,
) -> None:
    first, second, _ = servers3.primaries
    first.query("INSERT INTO people (email, is_gone) VALUES ('Ann@x', true), ('Bob@x', false)")
    servers3.settle()
    with first.connect() as one, second.connect() as other:
        one.execute("UPDATE people SET is_gone = false WHERE email = 'Ann@x'")
        other.execute("INSERT INTO people (email) VALUES ('ann@X')")
        failure = conflict_of(servers3, one, other)
    assert failure.sqlstate == "40001"
    assert "public.people/people_here/'ann@x'" in (failure.diag.message_detail or "")
    with first.connect() as one, second.connect() as other:
        one.execute("UPDATE people SET number = 1 WHERE email = 'Bob@x'")
        other.execute("INSERT INTO people (email, is_gone) VALUES ('bob@x', true)")
        one.commit()
        other.commit()
    assert len(servers3.settle()[4]) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "UPDATE accounts SET email = 'x@y' WHERE id = 11",
            "UPDATE accounts SET email = 'x@y' WHERE id = 12",
        ),
        ("DELETE FROM accounts WHERE id = 13", "INSERT INTO orders VALUES (2, 1, 13)"),
        ("INSERT INTO orders VALUES (3, 1, 14)", "DELETE FROM accounts WHERE id = 14"),
    ],
    ids=["a unique value twice", "a parent's deletion first", "a child first"],
)
def test_keys_conflict(servers3: PostgresqlGroup, one: str, other: str) -> None:
    first, second, _ = servers3.primaries
    servers3.settle()
    with first.connect() as before, second.connect() as after:
        before.execute(one.encode())
        after.execute(other.encode())
        assert conflict_of(servers3, before, after).sqlstate == "40001"
    servers3.settle()


def test_a_child_and_an_update_of_its_parent_do_not_conflict(servers3: PostgresqlGroup) -> None:
    first, second, _ = servers3.primaries
    with first.connect() as one, second.connect() as other:
        one.execute("UPDATE accounts SET balance = 0 WHERE id = 15")
        other.execute("INSERT INTO orders VALUES (4, 1, 15)")
        one.commit()
        other.commit()
    assert (4, 1, 15) in servers3.settle()[1]


@pytest.mark.parametrize("level", ["read committed", "serializable"])
def test_another_isolation_level_is_refused_with_a_hint(
    servers3: PostgresqlGroup, level: str
) -> None:
    with servers3.primaries[0].connect() as session:
        session.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        session.execute("UPDATE accounts SET balance = 0 WHERE id = 20")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=level.upper()) as failure:
            session.commit()
    assert "repeatable read" in (failure.value.diag.message_hint or "")


@pytest.mark.parametrize(
    "statement",
    [
        "PREPARE TRANSACTION 'one'",
        "/* /* -- */ */ PREPARE/**/TRANSACTION 'one'",
        "SELECT 1; PREPARE -- one\n TRANSACTION 'one'",
    ],
)
def test_what_cannot_be_certified_is_refused(servers3: PostgresqlGroup, statement: str) -> None:
    with servers3.primaries[0].connect() as session:
        session.execute("UPDATE accounts SET balance = 0 WHERE id = 20")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            session.execute(statement.encode())
        session.rollback()


def test_rows_of_partitions_are_equal_everywhere_whatever_statements_name(
    servers3: PostgresqlGroup,
) -> None:
    first, second, third = servers3.primaries
    first.query("INSERT INTO parts VALUES (1, '1999-01-01', 'a'), (2, '2001-01-01', 'b')")
    first.query("INSERT INTO parts_old (id, at, note) VALUES (3, '1998-01-01', 'c')")
    servers3.settle()
    second.query("UPDATE parts SET at = at + 3650 WHERE id IN (1, 3)")
    second.query("INSERT INTO parts_new VALUES (4, '2002-01-01', 'd'), (5, '2003-01-01', 'e')")
    rows = servers3.settle()[6]
    assert {row[1] for row in rows} == {1, 2, 3, 4, 5}
    assert {row[0] for row in rows} == {"parts_even", "parts_odd"}
    with third.connect() as session:
        session.execute("DELETE FROM parts_new WHERE id = 4")
        session.execute(
            "MERGE INTO parts USING (VALUES (5)) v (id) ON parts.id = v.id"
            " WHEN MATCHED THEN UPDATE SET note = 'merged', at = '1990-01-01'"
        )
    assert ("parts_old", 5, "1990-01-01", "merged") in servers3.settle()[6]
    first.query("TRUNCATE parts_old")
    assert {row[1] for row in servers3.settle()[6]} == {1, 2, 3}
    second.query("TRUNCATE parts")
    assert servers3.settle()[6] == []


def test_truncate_removes_rows_everywhere_unless_it_does_not_see_all(
    servers3: PostgresqlGroup,
) -> None:
    first, second, _ = servers3.primaries
    first.query("INSERT INTO orders SELECT 80, line, 1 FROM generate_series(1, 5) line")
    servers3.settle()
    with first.connect() as session:
        session.execute("INSERT INTO orders VALUES (81, 1, 1)")
        session.execute("TRUNCATE orders, things")
        session.execute("INSERT INTO orders VALUES (82, 1, 1)")
    assert servers3.settle()[1:3] == [[(82, 1, 1)], []]
    with first.connect() as session:
        session.execute("SELECT 1")
        second.query("INSERT INTO orders VALUES (83, 1, 1)")
        servers3.settle()
        session.execute("TRUNCATE orders")
        with pytest.raises(psycopg.errors.SerializationFailure, match="that is truncated"):
            session.commit()
    assert servers3.settle()[1] == [(82, 1, 1), (83, 1, 1)]
    second.query("TRUNCATE orders")
    assert servers3.settle()[1] == []


def test_a_statement_of_the_extended_protocol_commits_by_itself(servers3: PostgresqlGroup) -> None:
    with psycopg.connect(servers3.primaries[0].dsn, autocommit=True) as session:
        for _ in range(7):  # The last ones are prepared.
            session.execute("UPDATE accounts SET balance = %s WHERE id = %s", (77, 38))
        with session.pipeline():
            for account in (38, 39):
                session.execute("UPDATE accounts SET balance = %s WHERE id = %s", (78, account))
    found = balances(servers3)
    assert (found[38], found[39]) == (78, 78)


def test_a_table_without_a_key_is_kept_out(servers3: PostgresqlGroup) -> None:
    attachment = servers3.attachments[0]
    assert attachment.kept_out == {"public.keyless": "it has no primary key"}
    assert len(attachment.attached) == 8


def test_what_is_kept_out_stays_at_its_server(servers3: PostgresqlGroup) -> None:
    """Its rows, large objects, a table that was made at one server, though a row beside it goes to
    all, as that of a migration's version; and what refers to a row that another server deletes.
    """
    first, second, _ = servers3.primaries
    first.query("UPDATE accounts SET email = 'version 1' WHERE id = 36")
    with first.connect() as session:
        session.execute(
            "CREATE TABLE outside (id int PRIMARY KEY, account int REFERENCES accounts)"
        )
        session.execute("INSERT INTO outside VALUES (1, 35)")
        session.execute("INSERT INTO keyless VALUES ('here')")
        session.execute("SELECT lo_from_bytea(7000, 'here')")
        session.execute("UPDATE accounts SET email = 'version 2' WHERE id = 36")
    assert (36, "version 2") in [(row[0], row[2]) for row in servers3.settle()[0]]
    query = "SELECT to_regclass('outside') IS NULL, (SELECT count(*) FROM keyless), "
    query += "(SELECT count(*) FROM pg_largeobject_metadata WHERE oid = 7000)"
    found = [primary.query(query) for primary in servers3.primaries]
    assert found == [[(False, 1, 1)], [(True, 0, 0)], [(True, 0, 0)]]
    second.query("DELETE FROM accounts WHERE id = 35")
    assert 35 not in balances(servers3)
    assert first.query("SELECT account FROM outside") == [(35,)]
    first.query("DROP TABLE outside; DELETE FROM keyless; SELECT lo_unlink(7000)")
    second.query("INSERT INTO accounts VALUES (35, 100)")
    servers3.settle()


@pytest.mark.parametrize("how", ["terminated", "killed", "stopped"])
def test_a_backend_that_dies_after_the_verdict_loses_nothing(
    servers3: PostgresqlGroup, stack: ExitStack, how: str
) -> None:
    first, second, _ = servers3.primaries
    session = stack.enter_context(closing(has_asked(first)))
    session.execute("UPDATE accounts SET balance = 7000 WHERE id = 21")
    with servers3.member_stopped(0):
        commit = Commit(session)
        wait_for("it waits for its verdict", lambda: waits_for_verdict(commit))
        stop_process(commit.pid)
    query = "SELECT balance FROM accounts WHERE id = 21"
    wait_for("it is certified", lambda: second.query(query) == [(7000,)])
    if how == "killed":
        os.kill(commit.pid, signal.SIGKILL)  # The whole server recovers from its own log.
    elif how == "terminated":  # One that stays stopped is ended by the member.
        first.query(f"SELECT pg_terminate_backend({commit.pid})")
        continue_process(commit.pid)
    assert commit.ended() is not None
    wait_for("the server takes commits", first.takes_commits)
    assert balances(servers3)[21] == 7000
    second.query("UPDATE accounts SET balance = 100 WHERE id = 21")
    servers3.settle()


def test_a_child_that_waits_for_its_turn_is_not_given_up_for_a_change_of_its_parent(
    servers3: PostgresqlGroup, stack: ExitStack
) -> None:
    """The parent's table has another unique index, and the other server changes two rows of it."""
    first, second, _ = servers3.primaries
    servers3.settle()
    ((applier,),) = first.query(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'groupcert postgresql applier'"
    )
    session = stack.enter_context(closing(first.connect()))
    session.execute("INSERT INTO orders VALUES (30, 1, 31)")
    stop_process(applier)
    try:
        second.query("UPDATE accounts SET balance = 3000 WHERE id IN (31, 32)")
        commit = Commit(session)
        wait_for("it is certified", lambda: ask_member(first.dsn).waiting_transactions == 1)
    finally:
        continue_process(applier)
    assert commit.ended() is None
    assert (30, 1, 31) in servers3.settle()[1]


def test_rows_that_swap_a_unique_value_are_swapped_everywhere(servers3: PostgresqlGroup) -> None:
    first, second, _ = servers3.primaries
    first.query("UPDATE accounts SET email = 'at ' || id WHERE id IN (33, 34)")
    servers3.settle()
    with second.connect() as session:
        for number, email in ((33, "at none"), (34, "at 33"), (33, "at 34")):
            session.execute("UPDATE accounts SET email = %s WHERE id = %s", (email, number))
    emails = {row[0]: row[2] for row in servers3.settle()[0]}
    assert (emails[33], emails[34]) == ("at 34", "at 33")


def test_a_member_that_is_killed_goes_on_where_it_was(
    servers3: PostgresqlGroup, stack: ExitStack
) -> None:
    first, _, third = servers3.primaries
    session = stack.enter_context(closing(has_asked(first)))
    session.execute("UPDATE accounts SET balance = 8000 WHERE id = 22")
    with servers3.member_stopped(0):
        commit = Commit(session)
        wait_for("it waits for its verdict", lambda: waits_for_verdict(commit))
        first.member.kill()
    with pytest.raises(NotServing, match="without a member"):
        ask_member(first.dsn)
    failure = commit.ended()
    assert failure is not None and failure.sqlstate == "08007"
    with closing(first.connect()) as other:
        other.read_only = False  # It has begun read-only if its server knows by then.
        other.execute("UPDATE accounts SET balance = 0 WHERE id = 22")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="its member"):
            other.commit()
    for number in range(5):
        third.query(f"UPDATE accounts SET balance = {number} WHERE id = 23")
    first.member.start()
    wait_for("the member serves", first.takes_commits)
    found = balances(servers3)
    assert found[23] == 4
    assert found[22] in (100, 8000)  # Nobody could tell; it is the same everywhere.


def test_status_and_metrics_say_whose_transaction_holds_up_the_order(
    servers3: PostgresqlGroup, stack: ExitStack
) -> None:
    first = servers3.primaries[0]
    session = stack.enter_context(closing(has_asked(first)))
    session.execute("UPDATE accounts SET balance = 9000 WHERE id = 27")
    with servers3.member_stopped(0):
        commit = Commit(session)
        wait_for("it waits for its verdict", lambda: waits_for_verdict(commit))
        stop_process(commit.pid)

    def held_up() -> PostgresqlStatus | None:
        status = ask_member(first.dsn)
        is_held = status.waits_for.startswith(f"backend {commit.pid}, which commits ")
        return status if is_held else None

    try:
        status = wait_for("it holds up the order", held_up)
        with urllib.request.urlopen(f"http://{first.metrics_address}/metrics") as page:
            metrics = page.read().decode()
    finally:
        continue_process(commit.pid)
    assert commit.ended() is None and status is not None
    assert status.granted_transactions == 1 and not status.out_of_group
    assert "groupcert_postgresql_granted_transactions 1.0" in metrics
    assert 'groupcert_postgresql_refused_transactions_total{sqlstate="40001"}' in metrics
    done = CliRunner().invoke(app, ["postgresql", "status", "--dsn", first.dsn, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["certified_transactions"] == status.certified_transactions


@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_open_transaction_does_not_hold_others_up(
    servers3: PostgresqlGroup, stack: ExitStack, is_stopped: bool
) -> None:
    """It has lost: what others committed is not in its snapshot."""
    first, second, _ = servers3.primaries
    servers3.settle()
    session = stack.enter_context(closing(first.connect()))
    session.execute("UPDATE accounts SET balance = 1 WHERE id = 24")
    if is_stopped:
        stop_process(session.info.backend_pid)
    second.query("UPDATE accounts SET balance = 2 WHERE id = 24")
    assert balances(servers3)[24] == 2
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")


def test_a_transaction_may_be_open_longer_than_the_group_collects(
    servers3: PostgresqlGroup,
) -> None:
    first, second, _ = servers3.primaries
    servers3.settle()
    with first.connect() as session:
        session.execute("UPDATE accounts SET balance = 1 WHERE id = 25")

        def stable() -> int:
            status = servers3.group.status("m1")
            return int(status.observer.stable_version)

        start = stable()
        versions = iter(range(1, 100_000))

        def has_moved() -> bool:
            second.query(f"UPDATE accounts SET balance = {next(versions)} WHERE id = 26")
            row = session.execute("SELECT clock_timestamp() - now() > '4 s'").fetchone()
            return row == (True,)

        wait_for("several collections", has_moved)
        assert stable() >= start
    assert balances(servers3)[25] == 1


def test_a_server_out_of_its_group_is_read_only_and_comes_back_by_itself(
    servers3: PostgresqlGroup, stack: ExitStack
) -> None:
    first, second, _ = servers3.primaries
    before = stack.enter_context(closing(first.connect()))
    before.execute("SET lock_timeout TO 0; COMMIT")
    settings = _description(first.dsn)
    assert group_verb("leave", first)
    reason = "SELECT out_of_group FROM groupcert.settings WHERE out_of_group LIKE '%LEFT%'"
    wait_for("it is read-only", lambda: first.query(reason))
    assert first.query(READ_ONLY) == [("on",)]
    meanwhile = stack.enter_context(closing(first.connect()))
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        meanwhile.execute("UPDATE accounts SET balance = 0 WHERE id = 27")
    meanwhile.rollback()
    before.execute("UPDATE accounts SET balance = 0 WHERE id = 27")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="its member is LEFT"):
        before.commit()
    second.query("UPDATE accounts SET balance = 1 WHERE id = 27")
    assert group_verb("rejoin", first)
    wait_for("the server takes commits", first.takes_commits)
    wait_for("it ends sessions that would stay read-only", lambda: _has_ended(meanwhile))
    assert balances(servers3)[27] == 1
    assert before.execute("SHOW transaction_read_only").fetchone() == ("off",)
    assert _description(first.dsn) == settings


def test_a_member_that_is_stopped_says_so(servers3: PostgresqlGroup) -> None:
    *_, last = servers3.primaries
    with closing(last.connect()) as session:
        session.execute("SELECT 1")
        session.commit()
        assert last.member.stop() == 0
        session.execute("UPDATE accounts SET balance = 0 WHERE id = 28")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="was stopped"):
            session.commit()
    assert last.query(READ_ONLY) == [("on",)]
    assert "query cancellation interrupted" not in last.member.log.read_text()
    last.member.start()
    wait_for("the server takes commits", last.takes_commits)


def test_a_second_member_of_a_server_ends(servers3: PostgresqlGroup, tmp_path: Path) -> None:
    first = servers3.primaries[0]
    settings = {
        "group": "local",
        "member": "m4",
        "address": f"{HOST}:{free_port()}",
        "data_folder": str(tmp_path),
        "log_servers": [servers3.group.log_server.address],
        "postgresql": first.dsn,
    }
    config = tmp_path / "m4.toml"
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    done = subprocess.run(
        [str(Path(sys.executable).parent / "groupcert"), "member", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 2
    assert "another member serves it" in done.stderr
    assert first.takes_commits()


def test_detach_leaves_nothing(postgresql_dsn: str) -> None:
    with psycopg.connect(postgresql_dsn, autocommit=True) as session:
        session.execute("CREATE TABLE things (id serial PRIMARY KEY)")
        before = _description(postgresql_dsn)
        attach(postgresql_dsn, ["public.*"], set_isolation=True, numbering=Numbering(2, 3))
        assert _description(postgresql_dsn) != before
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            session.execute("INSERT INTO things VALUES (1)")
        assert detach(postgresql_dsn) == ["public.things"]
        session.execute("INSERT INTO things VALUES (1)")
    assert _description(postgresql_dsn) == before


def _has_ended(session: "psycopg.Connection[Any]") -> bool:
    try:
        session.execute("SELECT 1")
        session.rollback()
    except psycopg.OperationalError:
        return True
    return False


def _description(dsn: str) -> str:
    """Returns the schema and the settings of a database, as PostgreSQL itself describes them."""
    command = ["pg_dump", "--schema-only", "--create", dsn]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith(("\\restrict", "\\unrestrict")))
