"""What SQL targets promise, on both servers.

Aim: rows and GTIDs are always there together, whatever fails in between. Method: the target is
driven as the applier drives it, and looked at through sessions of the test's own; sessions are
killed at the server.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import permutations, product

import pytest

from groupcert.applier.errors import TransientFailure, UnsuitableTarget, noted_statement
from groupcert.applier.queue.job import CommitGroup
from groupcert.applier.queue.target_progress import Checkpoint, LastError, Stage, TargetProgress
from groupcert.applier.targets import mysql, postgresql, sql
from groupcert.applier.targets.sql import SqlTarget
from groupcert.applier.targets.sql_schema import SqlSchema
from groupcert.applier.targets.sql_server import SqlServer
from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.gtid import Gtid
from tests.applier.sql_databases import (
    SCHEMA,
    SOURCE,
    Database,
    SqlJob,
    apply,
    commit,
    decode,
    divided,
    entry,
    gtids,
    job,
)
from tests.integration.waiting import wait_for


@pytest.fixture
def target(database: Database) -> Iterator[SqlTarget]:
    """A target in it for jobs of four workers."""
    opened = database.open()
    yield opened
    opened.close()


def executed(target: SqlTarget, count: int) -> list[SqlJob]:
    """Jobs that are executed and not committed, each with a row and a worker of its own."""
    jobs = [job(entry(n, {f"shop.orders/{n}": str(n)}), worker=n) for n in range(1, count + 1)]
    for each in jobs:
        each.execution = target.execute(each)
    return jobs


def test_rows_are_put_overwritten_and_deleted(database: Database, target: SqlTarget) -> None:
    apply(target, job(entry(1, {"shop.orders/1": "a", "shop.orders/-2": "\x00\xff'\\"})))
    assert database.orders() == {1: b"a", -2: b"\x00\xff'\\"}
    apply(target, job(entry(2, {"shop.orders/1": "", "shop.orders/3": "c"}, "shop.orders/-2")))
    assert database.orders() == {1: b"", 3: b"c"}
    apply(target, job(entry(3, {}, "shop.orders/1", "shop.orders/3", "shop.orders/99")))
    assert database.orders() == {}
    assert database.executed() == [(1, ""), (2, ""), (3, "")]


KEYED = """
[tables."shop.parent"]
table = "z_parent"
key = { id = "integer" }
columns = { code = "text" }
[tables."shop.child"]
table = "a_child"
key = { id = "integer" }
columns = { parent = "integer" }
"""


def test_tables_may_have_foreign_keys_and_further_unique_keys(database: Database) -> None:
    database.query("CREATE TABLE z_parent (id integer PRIMARY KEY, code varchar(9) UNIQUE)")
    database.query(
        "CREATE TABLE a_child (id integer PRIMARY KEY, parent integer NOT NULL,"
        " FOREIGN KEY (parent) REFERENCES z_parent (id))"
    )
    target = database.open(schema=KEYED)
    parents = {f"shop.parent/{n}": json.dumps({"code": f"c{n}"}) for n in (1, 2)}
    apply(target, job(entry(1, {"shop.child/1": '{"parent": 1}', **parents})))
    apply(
        target, job(entry(2, {"shop.parent/1": '{"code": "d"}', "shop.child/1": '{"parent": 2}'}))
    )
    for rows, kind in (
        ({"shop.parent/3": '{"code": "c2"}'}, "duplicate_key"),
        ({"shop.child/2": '{"parent": 9}'}, "foreign_key"),
    ):
        with pytest.raises(TransientFailure) as raised:
            target.execute(job(entry(3, rows)))
        assert raised.value.kind == kind
    apply(target, job(entry(3, {}, "shop.parent/2", "shop.child/1")))
    assert database.query("SELECT * FROM z_parent") == [(1, "d")]
    assert database.query("SELECT * FROM a_child") == []
    target.close()


def test_typed_columns_and_json_arrive(database: Database, target: SqlTarget) -> None:
    note = "it's \\ \u20ac"
    value = json.dumps({"amount": -7, "note": note, "extra": [1, None], "more": 1})
    empty = json.dumps({"amount": 0, "note": None, "extra": {}})
    apply(target, job(entry(1, {"shop.items/a b/x/y": value, "shop.items/A B/": empty})))
    rows = database.query("SELECT tenant, id, amount, note, extra, seen FROM items ORDER BY id")
    found = [
        (tenant, key, amount, text, json.loads(extra) if isinstance(extra, str) else extra, seen)
        for tenant, key, amount, text, extra, seen in rows
    ]
    assert found == [
        ("A B", b"", 0, None, {}, 0),
        ("a b", b"x/y", -7, note, [1, None], 0),
    ]
    apply(target, job(entry(2, {}, "shop.items/a b/x/y", "shop.items/A B/")))
    assert database.query("SELECT * FROM items") == []


def test_rows_of_other_tables_go_to_the_one_table(database: Database, target: SqlTarget) -> None:
    apply(target, job(entry(1, {"greeting": "hello", "a.b/c": "d", "/greeting": "other"})))
    rows = database.query("SELECT row_key, value FROM groupcert_rows ORDER BY row_key")
    assert rows == [(b"/greeting", b"other"), (b"a.b/c", b"d"), (b"greeting", b"hello")]


def test_a_transaction_larger_than_a_statement_arrives_whole(
    database: Database, target: SqlTarget
) -> None:
    apply(target, job(entry(1, {f"shop.orders/{number}": "x" for number in range(2_500)})))
    assert len(database.orders()) == 2_500
    apply(target, job(entry(2, {}, *(f"shop.orders/{number}" for number in range(2_400)))))
    assert sorted(database.orders()) == [*range(2_400, 2_500)]


def test_nothing_is_seen_before_the_commit_and_nothing_left_after_abandon(
    database: Database, target: SqlTarget
) -> None:
    mine = job(entry(1, {"shop.orders/1": "a"}))
    mine.execution = target.execute(mine)
    assert (database.orders(), database.executed()) == ({}, [])
    target.abandon(mine)
    other = job(entry(2, {"shop.orders/1": "b"}), worker=1)
    apply(target, other)  # The row's lock is free.
    apply(target, mine)
    assert database.orders() == {1: b"a"}
    assert database.executed() == [(1, ""), (2, "")]


def test_close_leaves_nothing_uncommitted(database: Database, target: SqlTarget) -> None:
    target.execute(job(entry(1, {"shop.orders/1": "a"})))
    target.close()
    with_next = database.open()
    assert with_next.checkpoint() is None
    assert database.orders() == {}
    with_next.close()


def test_a_group_of_jobs_is_committed_in_order(database: Database, target: SqlTarget) -> None:
    jobs = executed(target, 4)
    assert commit(target, *jobs).gtid_executed == gtids(1, 2, 3, 4)
    assert database.orders() == {1: b"1", 2: b"2", 3: b"3", 4: b"4"}


def test_merged_transactions_leave_the_last_change_and_all_gtids(
    database: Database, target: SqlTarget
) -> None:
    first = entry(1, {"shop.orders/1": "old", "shop.orders/2": "gone", "shop.orders/3": "x"})
    second = entry(2, {"shop.orders/1": "new"}, "shop.orders/2", "shop.orders/3")
    third = entry(3, {"shop.orders/3": "back"})
    apply(target, job(first, second, third))
    assert database.orders() == {1: b"new", 3: b"back"}
    assert database.executed() == [(1, ""), (2, ""), (3, "")]


def test_parts_take_their_rows_and_are_told_from_the_whole(
    database: Database, target: SqlTarget
) -> None:
    whole = entry(1, {f"shop.orders/{number}": "x" for number in range(20)})
    first, second, third = divided(whole, 3)
    apply(target, second)
    part = database.orders()
    assert 0 < len(part) < 20
    found = target.checkpoint()
    assert found is not None
    assert found.parts == {Gtid(SOURCE, 1): frozenset({"1/3"})}
    assert not found.gtid_executed
    apply(target, first)
    apply(target, third)
    assert len(database.orders()) == 20
    assert database.executed() == [(1, "part 0/3"), (1, "part 1/3"), (1, "part 2/3")]


def test_a_part_that_an_earlier_process_executed_is_left_out_of_the_commit(
    database: Database, target: SqlTarget
) -> None:
    whole = entry(1, {f"shop.orders/{number}": "x" for number in range(20)})
    first, second = divided(whole, 2)
    apply(target, first)
    first, second = divided(whole, 2)
    second.execution = target.execute(second)
    assert commit(target, first, second).gtid_executed == gtids(1)
    assert len(database.orders()) == 20


def test_the_newest_change_of_a_row_wins_in_every_order(
    database: Database, target: SqlTarget
) -> None:
    """Three changes of a row, one of them its deletion, in every order; each case has its row."""
    cases = list(enumerate(product(permutations((1, 2, 3)), (1, 2, 3))))
    for case, (order, deleted) in cases:
        row = f"shop.orders/{case}"
        for number in order:
            put = {} if number == deleted else {row: str(number)}
            change = entry(10 * case + number, put, *(() if put else (row,)))
            apply(target, job(change, keeps_newest=True))
    newest = {case: b"3" for case, (_, deleted) in cases if deleted != 3}
    assert database.orders() == newest
    assert len(database.executed()) == 3 * len(cases)


def test_only_the_stale_rows_of_a_transaction_are_discarded(
    database: Database, target: SqlTarget
) -> None:
    apply(target, job(entry(5, {"shop.orders/1": "5"}), keeps_newest=True))
    older = entry(4, {"shop.orders/1": "4", "shop.orders/2": "4"})
    newer = entry(6, {"shop.orders/3": "6"}, "shop.orders/9")
    apply(target, job(older, newer, keeps_newest=True))
    assert database.orders() == {1: b"5", 2: b"4", 3: b"6"}
    apply(target, job(entry(3, {"shop.orders/9": "late"}), keeps_newest=True))
    assert 9 not in database.orders()


def test_checkpoint_is_what_was_saved_and_what_was_executed_since(
    database: Database, target: SqlTarget
) -> None:
    assert target.checkpoint() is None
    apply(target, job(entry(1)))
    apply(target, job(entry(3)))
    target.save(Checkpoint(version=1, position=1, tick=9, gtid_executed=gtids(1)))
    assert database.executed() == [(1, ""), (3, "")]
    apply(target, divided(entry(7), 2)[1])
    apply(target, job(entry(5)))
    target.close()
    again = database.open()
    found = again.checkpoint()
    assert found is not None
    assert found.gtid_executed == gtids(1, 3, 5)
    assert (found.version, found.position, found.tick) == (7, 1, 9)  # 7 is there in part.
    assert found.parts == {Gtid(SOURCE, 7): frozenset({"1/2"})}
    again.save(Checkpoint(gtid_executed=gtids(1, 2, 3, 4, 5)))
    assert database.executed() == [(3, ""), (5, ""), (7, "part 1/2")]
    again.save(Checkpoint(gtid_executed=gtids(1, 2, 3, 4, 5)))
    assert database.executed() == [(7, "part 1/2")]
    again.close()


def test_an_error_is_saved_and_over_once_its_transaction_is_executed(
    database: Database, target: SqlTarget
) -> None:
    error = LastError.of(Stage.EXECUTING, ValueError("'no' \0"), 1, Gtid(SOURCE, 2))
    apply(target, job(entry(1)))
    target.save(Checkpoint(error=error, gtid_executed=gtids(1)))
    found = target.checkpoint()
    assert found and TargetProgress(found).checkpoint.error == error
    apply(target, job(entry(2)))
    found = target.checkpoint()
    assert found and TargetProgress(found).checkpoint.error is None


def test_two_replicas_share_tables_and_nothing_else(database: Database, target: SqlTarget) -> None:
    other = database.open(replica="r2")
    apply(target, job(entry(1, {"shop.orders/1": "a"})))
    apply(other, job(entry(1, {"shop.orders/2": "b"})))
    for _ in range(2):
        target.save(Checkpoint(gtid_executed=gtids(1)))
    assert database.orders() == {1: b"a", 2: b"b"}
    found = other.checkpoint()
    assert found is not None and found.gtid_executed == gtids(1)
    assert database.executed() == [(1, "")]
    other.close()


def test_a_gtid_is_never_executed_twice(database: Database, target: SqlTarget) -> None:
    apply(target, job(entry(1, {"shop.orders/1": "a"})))
    with pytest.raises(TransientFailure, match=r"(?i)duplicate") as raised:
        target.execute(job(entry(1, {"shop.orders/1": "b"})))
    assert raised.value.kind == "duplicate_key"  # The commit of a lost session may come through.
    known = noted_statement(raised.value)  # PostgreSQL does not say which one of a request.
    assert not known or known.startswith("INSERT INTO groupcert_executed ")
    apply(target, job(entry(2, {"shop.orders/2": "c"})))
    assert database.orders() == {1: b"a", 2: b"c"}


def test_a_row_that_does_not_fit_is_named_and_nothing_is_written(
    database: Database, target: SqlTarget
) -> None:
    unfit = {"shop.items/a/b": '{"amount": 32768, "note": "", "extra": 0}'}
    with pytest.raises(UnsuitableTarget) as raised:
        target.execute(job(entry(1, {"shop.orders/1": "fits", **unfit})))
    problem = raised.value.problem
    assert problem.startswith("row b'shop.items/a/b' does not fit table items: 32768 for column")
    assert problem.endswith("amount is not in -32768 to 32767")
    apply(target, job(entry(2, {"shop.orders/2": "x"})))
    assert database.orders() == {2: b"x"}


def test_a_table_without_mapping_is_refused(database: Database) -> None:
    target = database.open(schema=SCHEMA_OF_ORDERS)
    with pytest.raises(UnsuitableTarget, match=r"row b'shop.other/1' .*no mapping"):
        target.execute(job(entry(1, {"shop.orders/1": "a", "shop.other/1": "b"})))
    apply(target, job(entry(2, {"shop.orders/2": "c"})))
    assert database.orders() == {2: b"c"}
    target.close()


def test_all_that_is_wrong_with_the_tables_is_said_before_anything_is_written(
    database: Database,
) -> None:
    database.query("CREATE TABLE loose (id integer, body integer)")
    database.query("CREATE TABLE strict (id integer PRIMARY KEY, other integer NOT NULL UNIQUE)")
    schema = """
    [tables."a.missing"]
    key = { id = "integer" }
    value = { body = "bytes" }
    [tables."a.loose"]
    table = "loose"
    key = { id = "integer" }
    value = { body = "text" }
    [tables."a.strict"]
    table = "strict"
    key = { id = "integer" }
    value = { body = "text" }
    [tables."*"]
    """
    before = database.tables()
    with pytest.raises(UnsuitableTarget) as raised:
        database.open(schema=schema)
    problem = raised.value.problem
    assert "table a.missing is missing" in problem
    assert "column loose.body is int" in problem and "takes text" in problem
    assert "table loose has no unique key over (id)" in problem
    assert "table strict has no column body" in problem
    assert "column strict.other is not in the mapping, expected a default" in problem
    assert database.tables() == before


def test_more_workers_than_the_server_has_sessions_is_refused(database: Database) -> None:
    with pytest.raises(UnsuitableTarget, match="max_connections is 200, expected 503 or more"):
        database.open(workers=500)
    assert database.tables() == {"orders", "items"}


def test_a_name_has_one_replica_at_a_time(database: Database, target: SqlTarget) -> None:
    with pytest.raises(UnsuitableTarget, match="another process writes here as replica r1"):
        database.open()
    target.close()
    database.open().close()


def test_a_name_is_checked(database: Database) -> None:
    with pytest.raises(InvalidSetting, match="replica"):
        database.open(replica="r 1")


def test_a_lock_conflict_is_transient(database: Database, target: SqlTarget) -> None:
    older, younger = (job(entry(n, {"shop.orders/1": str(n)}), worker=n) for n in (1, 2))
    younger.execution = target.execute(younger)
    with pytest.raises(TransientFailure) as raised:
        target.execute(older)
    assert raised.value.kind == "lock_timeout"
    target.abandon(younger)
    apply(target, older)
    apply(target, younger)
    assert database.orders() == {1: b"2"}


def test_a_deadlock_is_transient(database: Database) -> None:
    """The target has row 1 and waits for row 2, which another session has and wants row 1. MariaDB
    undoes the smaller transaction, PostgreSQL that of the session that looks for deadlocks first.
    """
    if database.is_postgresql:
        name = database.address.rpartition("/")[2]
        database.query(f"ALTER DATABASE {name} SET deadlock_timeout TO '8s'")  # The target's.
        server: SqlServer = postgresql.PostgreSqlServer(database.address, lock_timeout_ms=600_000)
        waits = (
            "SELECT 1 FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    else:
        server = mysql.MySqlServer(database.address, lock_timeout_seconds=600)
        waits = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    schema = SqlSchema.parse(SCHEMA, decode)
    target = SqlTarget(server, schema, replica="r1", workers=1)
    mine = job(entry(1, {"shop.orders/1": "a", "shop.orders/2": "b"}))
    with (
        closing(database.connect()) as session,
        session.cursor() as cursor,
        ThreadPoolExecutor(1) as executor,
    ):
        if database.is_postgresql:
            cursor.execute("SET deadlock_timeout TO '600s'")
        cursor.execute("BEGIN")
        rows = ",".join(f"({number}, '')" for number in range(2, 100))
        cursor.execute(f"INSERT INTO orders VALUES {rows}")
        execution = executor.submit(target.execute, mine)
        while not execution.done() and not database.query(waits):
            time.sleep(0.2)  # MariaDB renews the view only when it was not read for 0.1 s.
        cursor.execute("INSERT INTO orders VALUES (1, '')")
        with pytest.raises(TransientFailure) as raised:
            execution.result()
        cursor.execute("ROLLBACK")
    assert raised.value.kind == "deadlock"
    apply(target, mine)
    assert database.orders() == {1: b"a", 2: b"b"}
    target.close()


def test_a_session_that_the_server_refuses_is_not_asked_for_again(database: Database) -> None:
    server, _, name = database.address.rpartition("/")
    protocol, host = server.partition("://")[0], server.rpartition("@")[2]
    connecting = postgresql.PostgreSqlServer if database.is_postgresql else mysql.MySqlServer
    for address in (f"{server}/absent", f"{protocol}://nobody:secret@{host}/{name}"):
        with pytest.raises(UnsuitableTarget, match="expected a user, a password") as raised:
            connecting(address).connect()
        assert "secret" not in str(raised.value)


def test_killed_sessions_are_transient_and_renewed(database: Database, target: SqlTarget) -> None:
    apply(target, job(entry(1, {"shop.orders/1": "a"})))
    database.kill_sessions()
    mine = job(entry(2, {"shop.orders/2": "b"}))
    with pytest.raises(TransientFailure) as raised:
        target.execute(mine)
    assert raised.value.kind == "connection_lost"
    apply(target, mine)
    for _ in range(2):
        target.save(Checkpoint(gtid_executed=gtids(1)))
    assert database.orders() == {1: b"a", 2: b"b"}
    assert database.executed() == [(2, "")]


def test_a_session_lost_before_its_commit_is_executed_again(
    database: Database, target: SqlTarget
) -> None:
    jobs = executed(target, 2)
    database.kill_sessions()
    assert commit(target, *jobs).gtid_executed == gtids(1, 2)
    assert database.orders() == {1: b"1", 2: b"2"}
    assert database.executed() == [(1, ""), (2, "")]


def test_a_session_lost_after_others_of_its_group_were_visible_is_left_to_a_restart(
    database: Database, target: SqlTarget
) -> None:
    jobs = executed(target, 2)
    group = CommitGroup(1, list(jobs), lambda count: database.kill_sessions())
    with pytest.raises(TransientFailure) as raised:
        target.commit(group, TargetProgress(Checkpoint()))
    assert raised.value.kind == "connection_lost"
    assert database.executed() == [(1, "")]


def test_once_closed_nothing_is_committed(
    database: Database, target: SqlTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is at work while its target is closed: a new session would know nothing of its
    transaction, and commit it without an error.
    """
    monkeypatch.setattr(sql, "COMMIT_PAUSES_MS", (0, 1))
    mine = job(entry(1, {"shop.orders/1": "a"}))
    mine.execution = target.execute(mine)
    target.close()
    progress = TargetProgress(Checkpoint())
    for act in (
        lambda: target.commit(CommitGroup(1, [mine]), progress),
        lambda: target.execute(mine),
        lambda: target.save(Checkpoint()),
    ):
        with pytest.raises(TransientFailure):
            act()
    assert not progress.checkpoint.gtid_executed
    assert (database.orders(), database.executed()) == ({}, [])


def test_a_session_closed_under_a_statement_ends_after_it(
    database: Database, target: SqlTarget
) -> None:
    """As where a stop has waited for as long as it was asked to."""
    mine = job(entry(1, {"shop.orders/1": "a"}))
    target.execute(mine)
    session = target._sessions[0]
    sleep = "SELECT pg_sleep(1)" if database.is_postgresql else "SELECT SLEEP(1)"
    with ThreadPoolExecutor(1) as threads:
        asleep = threads.submit(session.run, sleep)
        wait_for("the statement", lambda: database.others(sleep))
        target.close()
        asleep.result()
    wait_for("its end", lambda: not database.others())
    assert database.orders() == {}


def test_a_commit_whose_answer_was_lost_is_not_repeated(
    database: Database, target: SqlTarget
) -> None:
    mine = job(entry(1, {"shop.orders/1": "a"}))
    apply(target, mine)
    database.query("UPDATE orders SET content = ''")
    database.kill_sessions()
    commit(target, mine)  # It is committed, as far as the server knows.
    assert database.orders() == {1: b""}


def test_a_checkpoint_is_left_for_later_where_a_worker_holds_what_it_would_delete(
    database: Database, target: SqlTarget
) -> None:
    apply(target, job(entry(1)))
    open_job = job(entry(2), worker=1)
    open_job.execution = target.execute(open_job)
    for _ in range(3):
        target.save(Checkpoint(gtid_executed=gtids(1)))
    commit(target, open_job)
    for _ in range(3):
        target.save(Checkpoint(gtid_executed=gtids(1, 2)))
    assert database.executed() == []


SCHEMA_OF_ORDERS = """
[tables."shop.orders"]
table = "orders"
key = { id = "integer" }
value = { content = "bytes" }
"""
