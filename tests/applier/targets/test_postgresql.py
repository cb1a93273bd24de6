"""What PostgreSQL alone is asked for; what all SQL targets promise is in `test_sql.py`."""

import threading
from pathlib import Path

import psycopg
import pytest

from groupcert.applier.engine.applier import Applier, ApplierOptions
from groupcert.applier.engine.coordinator import CoordinatorOptions
from groupcert.applier.errors import TransientFailure, UnsuitableTarget
from groupcert.applier.queue.job import CommitGroup
from groupcert.applier.queue.target_progress import Checkpoint, Stage, TargetProgress
from groupcert.applier.schemes.catalogue import scheme
from groupcert.applier.targets import postgresql
from groupcert.applier.targets.sql import SqlExecution, SqlTarget
from groupcert.applier.targets.sql_schema import SqlSchema
from tests.applier.sql_databases import (
    SCHEMA,
    SOURCE,
    Database,
    SqlJob,
    apply,
    commit,
    decode,
    entry,
    gtids,
    job,
)
from tests.servers import PREPARING, PostgreSqlServer

pytestmark = pytest.mark.database


@pytest.fixture
def own_folder(tmp_path: Path, postgresql: PostgreSqlServer) -> Path:
    """A folder for a server of the test's own, where the machine has one."""
    assert postgresql.pid
    return tmp_path


def test_a_group_is_durable_when_its_commit_returns(own_folder: Path) -> None:
    """All but its last commit do not wait for the disk; the server is killed right after."""
    with PostgreSqlServer(own_folder, PREPARING) as server:
        target = Database("postgresql", server.dsn).open()
        jobs = [job(entry(n, {f"shop.orders/{n}": "x"}), worker=n % 4) for n in range(1, 5)]
        for each in jobs:
            each.execution = target.execute(each)
        commit(target, *jobs)
        server.kill()
        target.close()
    with PostgreSqlServer(own_folder, PREPARING) as server, psycopg.connect(server.dsn) as session:
        found = session.execute("SELECT number, id FROM groupcert_executed, orders WHERE number=id")
        assert sorted(found) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_where_the_server_falls_within_a_group_its_checkpoint_says_what_is_left(
    own_folder: Path,
) -> None:
    """The first commit is visible and not durable: its worker's next job may have seen it."""
    jobs = [job(entry(n, {f"shop.orders/{n}": "x"}), worker=n) for n in (1, 2)]
    with PostgreSqlServer(own_folder, PREPARING) as server:
        target = Database("postgresql", server.dsn).open()
        for each in jobs:
            each.execution = target.execute(each)
        progress = TargetProgress(Checkpoint())

        def fall(count: int) -> None:
            assert count == 1
            server.kill()

        with pytest.raises(TransientFailure) as raised:
            target.commit(CommitGroup(1, list(jobs), fall), progress)
        assert raised.value.kind == "connection_lost"
        assert not progress.checkpoint.gtid_executed
        target.close()
    schema = SqlSchema.parse(SCHEMA, decode)
    with PostgreSqlServer(own_folder, PREPARING) as server:
        own = postgresql.PostgreSqlServer(server.dsn)
        again = SqlTarget(own, schema, replica="r1", workers=4)
        found = again.checkpoint() or Checkpoint()
        count = found.gtid_executed.count()
        assert found.gtid_executed == gtids(*range(1, count + 1))
        left = jobs[count:]
        assert left
        apply(again, *left)
        again.close()
        with psycopg.connect(server.dsn) as session:
            rows = session.execute(
                "SELECT number, id FROM groupcert_executed FULL JOIN orders ON number = id"
            )
            assert sorted(rows) == [(1, 1), (2, 2)]


def test_what_the_server_forgets_without_an_error_is_refused(target_dsn: str) -> None:
    database = Database("postgresql", f"{target_dsn}?options=-csynchronous_commit%3Doff")
    with pytest.raises(UnsuitableTarget, match="synchronous_commit is off, expected on"):
        database.open()


def test_who_could_not_commit_is_named(target_dsn: str) -> None:
    """A constraint that is checked at the commit, of one in the midst of a group."""
    database = Database("postgresql", target_dsn)
    database.query("CREATE TABLE allowed (id bigint PRIMARY KEY)")
    database.query("INSERT INTO allowed VALUES (1), (2), (4)")
    database.query(
        "ALTER TABLE orders ADD FOREIGN KEY (id) REFERENCES allowed DEFERRABLE INITIALLY DEFERRED"
    )
    target = database.open()
    errors: list[Exception] = []
    applier = Applier(
        target,
        scheme("logical-clock"),
        4,
        on_committed=lambda version, position: None,
        on_error=errors.append,
    )
    entries = [
        entry(n, {f"shop.orders/{n}": "x"})._replace(last_committed=0, sequence_number=n)
        for n in range(1, 5)
    ]
    applier.append(entries)
    assert not applier.drain(120)
    status = applier.status()
    applier.stop(120)
    target.close()
    failure = status.failure
    assert failure and failure.gtid == f"{SOURCE}:3"
    assert failure.stage is Stage.COMMITTING
    assert f"in worker {failure.worker}" in errors[0].__notes__
    assert set(database.orders()) == {1, 2}


@pytest.mark.parametrize("group_max", [1, 2])
def test_who_holds_what_an_older_commit_waits_for_gives_way(
    target_dsn: str, group_max: int
) -> None:
    """A deferred foreign key locks its parent at the commit; the younger one has its unique key."""
    database = Database("postgresql", target_dsn)
    database.query("CREATE TABLE parent (id bigint PRIMARY KEY, code bytea UNIQUE)")
    database.query(
        "CREATE TABLE child (id bigint PRIMARY KEY,"
        " parent bigint REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
    )
    database.query("INSERT INTO parent VALUES (1, 'a')")
    schema = """
    [tables.parent]
    key = { id = "integer" }
    value = { code = "bytes" }
    [tables.child]
    key = { id = "integer" }
    columns = { parent = "integer" }
    """
    target = database.open(schema=schema, workers=2)
    both_executed = threading.Barrier(2)
    seen: list[int] = []
    at_once = target.execute

    def execute(job: SqlJob) -> SqlExecution:
        execution = at_once(job)
        if len(seen) < 2:
            seen.append(job.entries[0].position)
            both_executed.wait(60)
        return execution

    target.execute = execute  # type: ignore[method-assign]
    errors: list[Exception] = []
    applier = Applier(
        target,
        scheme("logical-clock"),
        2,
        on_committed=lambda version, position: None,
        on_error=errors.append,
        options=ApplierOptions(coordinator=CoordinatorOptions(group_transactions_max=group_max)),
    )
    changes = [{"child/1": '{"parent": 1}'}, {"parent/1": "b"}]
    applier.append(
        [
            entry(n, put)._replace(last_committed=0, sequence_number=n)
            for n, put in enumerate(changes, 1)
        ]
    )
    assert applier.drain(60), errors
    assert applier.stop(60)
    target.close()
    assert sorted(seen) == [1, 2]
    assert database.query("SELECT * FROM child, parent") == [(1, 1, 1, b"b")]


def test_no_prepared_transactions_are_refused_where_they_are_needed(own_folder: Path) -> None:
    schema = SqlSchema.parse('[tables."*"]', decode)
    with PostgreSqlServer(own_folder, "max_prepared_transactions=0") as server:
        own = postgresql.PostgreSqlServer(server.dsn)
        with pytest.raises(UnsuitableTarget, match="max_prepared_transactions is 0, expected 4"):
            SqlTarget(own, schema, replica="r1", workers=4, two_phase=True)
        with psycopg.connect(server.dsn) as session:
            assert session.execute("SELECT to_regclass('groupcert_executed')").fetchone() == (None,)
        SqlTarget(own, schema, replica="r1", workers=4).close()


def test_tables_may_be_in_another_schema_and_have_other_types(target_dsn: str) -> None:
    database = Database("postgresql", target_dsn)
    database.query("CREATE SCHEMA shop")
    database.query(
        "CREATE TABLE shop.notes (id varchar(9) PRIMARY KEY, body json NOT NULL,"
        " size integer GENERATED ALWAYS AS (1) STORED, number integer GENERATED ALWAYS AS IDENTITY)"
    )
    mapping = '[tables."shop.notes"]\nkey = { id = "text" }\nvalue = { body = "json" }'
    target = database.open(schema=mapping)
    apply(target, job(entry(1, {"shop.notes/it's": '{"a": "\\u0027"}'})))
    assert database.query("SELECT id, body, size FROM shop.notes") == [("it's", {"a": "'"}, 1)]
    target.close()


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("VIEW t AS SELECT 1 AS id, ''::bytea AS body", "is no table but another relation"),
        ("TABLE t (id text COLLATE folded PRIMARY KEY, body bytea)", "texts that differ"),
        ("TABLE t (id text UNIQUE DEFERRABLE, body bytea)", "no unique key over (id)"),
        ("TABLE t (id text GENERATED ALWAYS AS ('') STORED UNIQUE, body bytea)", "generated"),
    ],
)
def test_tables_that_cannot_be_written_are_refused(
    target_dsn: str, table: str, expected: str
) -> None:
    database = Database("postgresql", target_dsn)
    folded = "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    database.query(f"CREATE COLLATION folded {folded}")
    database.query(f"CREATE {table}")
    mapping = '[tables.t]\nkey = { id = "text" }\nvalue = { body = "bytes" }'
    with pytest.raises(UnsuitableTarget) as raised:
        database.open(schema=mapping)
    assert expected in raised.value.problem


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    nobody = postgresql.PostgreSqlServer("postgresql://127.0.0.1:1/x")
    schema = SqlSchema.parse('[tables."*"]', decode)
    with pytest.raises(TransientFailure) as raised:
        SqlTarget(nobody, schema, replica="r1", workers=1)
    assert raised.value.kind == "connection_lost"
