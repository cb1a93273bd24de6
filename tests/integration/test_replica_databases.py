"""Replicas on PostgreSQL and MariaDB: the same rows, by states that the source had, through any
crash.
"""

import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

import psycopg
import pymysql
import pytest

from groupcert import Client
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.demo.local_group import LocalGroup
from tests import servers
from tests.integration.replica_bank import MAPPING, Bank, assert_whole
from tests.integration.replicas import (
    AUDIT,
    History,
    Load,
    ReplicaProcess,
    Rows,
    account,
    group_with_history,
)
from tests.integration.waiting import wait_for
from tests.servers import connect_mariadb

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.in_turns]

Server = TypeVar("Server")
FINE, FINDING, USAGE, UNAVAILABLE = range(4)
KILLS = 3
LIVES_MAX = 20


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[LocalGroup, History]]:
    """A group with a history that no test adds to."""
    with group_with_history(tmp_path_factory.mktemp("shared"), 400) as shared:
        yield shared


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LocalGroup]:
    """A group that a test writes to."""
    with group_with_history(tmp_path / "source", 20, members=1) as (group, _):
        yield group


@pytest.fixture(params=["postgresql", "mariadb"])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    """A fresh database of each server."""
    name = "target_dsn" if request.param == "postgresql" else "mariadb_url"
    return Bank(request.param, request.getfixturevalue(name), tmp_path)


@pytest.mark.parametrize(
    "scheme",
    [
        "logical-clock",
        "jobs --conflicts graph",
        "jobs --conflicts ordered",
        "database",
        "table",
        "rows",
    ],
)
def test_every_row_comes_and_is_executed_once(
    bank: Bank, shared: tuple[LocalGroup, History], tmp_path: Path, scheme: str
) -> None:
    group, history = shared
    with bank.replica(tmp_path, group, scheme) as replica:
        assert replica.run("--until-after-gtids", str(history.gtids)) == 0, replica.last_line()
    assert_whole(bank, history)


@pytest.mark.parametrize("scheme", ["logical-clock", "rows"])
def test_a_large_transaction_comes_whole(
    bank: Bank, source: LocalGroup, tmp_path: Path, scheme: str
) -> None:
    """It goes through the log in fragments; as statements it is 40 MB, of which MariaDB takes 16 at
    a time.
    """
    with Client(source.addresses["m1"]) as client:
        with client.transaction() as transaction:
            for number in range(1_500):
                transaction.put(b"audit.log/large %d" % number, os.urandom(10_000))
            transaction.put(b"audit.log/largest", os.urandom(5_000_000))
            accounts = [row for row in transaction.scan(b"bank.", b"bank/")]
            for key, value in accounts:
                row = json.loads(value)
                transaction.put(key, account(row["balance"], row["changes"] + 1))
        with client.transaction() as transaction:
            transaction.delete(b"audit.log/largest")
    history = History(source.addresses["m1"])
    with bank.replica(tmp_path, source, scheme) as replica:
        assert replica.run("--until-after-gtids", str(history.gtids)) == 0, replica.last_line()
    assert_whole(bank, history)


@pytest.mark.parametrize("scheme", ["logical-clock", "jobs --conflicts ordered", "group-commit"])
def test_readers_only_ever_see_states_that_the_source_had(
    bank: Bank, shared: tuple[LocalGroup, History], tmp_path: Path, scheme: str
) -> None:
    """Any-time consistency: a snapshot over all tables is the source's after some transaction.
    With group-commit that holds within a domain.
    """
    group, history = shared
    is_whole = scheme != "group-commit"
    states = [_seen(rows, is_whole=is_whole) for rows in history.states()]
    samples: list[Rows] = []
    ended = Event()

    def sample() -> None:
        with bank.connect() as session:
            while not ended.is_set():
                samples.append(_seen(bank.rows_in(session), is_whole=is_whole))

    bank.make_other_rows()
    reader = Thread(target=sample)
    with bank.replica(tmp_path, group, scheme) as replica:
        reader.start()
        wait_for("a reader", lambda: samples)
        replica.start("--until-after-gtids", str(history.gtids))
        code = replica.wait(120)
        ended.set()
        reader.join()
    assert code == 0, replica.last_line()
    assert [rows for rows in samples if rows not in states] == []
    assert_whole(bank, history)


def _seen(rows: Rows, *, is_whole: bool) -> Rows:
    """What a reader compares: everything, or what belongs to the accounts' domain."""
    return rows if is_whole else {k: v for k, v in rows.items() if not k.startswith(AUDIT.encode())}


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [
        "table",
        pytest.param("database", marks=pytest.mark.nightly),
        pytest.param("jobs --conflicts ignore", marks=pytest.mark.nightly),
        "rows",
    ],
)
def test_killed_again_and_again_it_fills_its_gaps_and_executes_nothing_twice(
    bank: Bank, source: LocalGroup, tmp_path: Path, scheme: str
) -> None:
    chance = random.Random(f"{scheme} {bank.is_postgresql}")
    load = Load(list(source.addresses.values()))
    with bank.replica(tmp_path, source, scheme) as replica:
        with load.running():
            for run in range(KILLS):
                replica.start()
                replica.wait_for_start(run + 1)
                if run == KILLS - 1:
                    _wait_for_count(bank, 0)
                time.sleep(chance.uniform(0, 0.3))
                replica.kill()
            load.wait_for_commits(1)
        history = History(source.addresses["m1"])
        assert replica.run("--until-after-gtids", str(history.gtids)) == 0, replica.last_line()
        started = replica.events("replica_started")
    assert len(started) == KILLS + 1
    assert any(GtidSet.parse(event["executed"]) for event in started[1:])
    assert all({"missing", "in_part"} <= event.keys() for event in started)
    assert_whole(bank, history, is_exact="ignore" not in scheme)


def test_gaps_can_be_filled_before_another_scheme_goes_on(
    bank: Bank, source: LocalGroup, tmp_path: Path
) -> None:
    """Tables overtake each other, so that a crash leaves transactions in part and gaps."""
    load = Load(list(source.addresses.values()))
    with bank.replica(tmp_path, source, "table") as replica:
        with load.running():
            load.wait_for_commits(100)
            for _ in range(LIVES_MAX):
                before = _count(bank)
                replica.start()
                _wait_for_count(bank, before + 10)
                replica.kill()
                if bank.in_part():
                    break
        executed = bank.executed()
        assert bank.in_part() > 0, f"killed {LIVES_MAX} times in vain"
        with bank.replica(tmp_path / "other", source, "rows") as other:
            assert other.run() == USAGE
            assert "setting scheme is 'rows': expected table, which left" in other.last_line()
            assert "--until-after-gaps first" in other.last_line()
        assert bank.executed() == executed, "nothing was done"
        assert replica.run("--until-after-gaps") == FINE, replica.last_line()
        assert bank.in_part() == 0
        history = History(source.addresses["m1"])
        assert bank.rows() in history.states(), "the newest was filled up to, and no more"
        with bank.replica(tmp_path / "other", source, "rows") as other:
            arguments = ("--until-after-gtids", str(history.gtids))
            assert other.run(*arguments) == FINE, other.last_line()
    assert_whole(bank, history)


def _wait_for_count(bank: Bank, count: int) -> None:
    wait_for("progress", lambda: _count(bank) > count)


def _count(bank: Bank) -> int:
    """Transactions that are executed."""
    return bank.executed().count() if "groupcert_executed" in bank.own_tables() else 0


@pytest.mark.parametrize("scheme", ["logical-clock", "table"])
def test_what_a_table_does_not_take_stops_it_until_the_table_is_mended(
    bank: Bank, shared: tuple[LocalGroup, History], tmp_path: Path, scheme: str
) -> None:
    group, history = shared
    bank.query("ALTER TABLE bank_a1 ADD CONSTRAINT few CHECK (changes < 9)")
    with bank.replica(tmp_path, group, scheme) as replica:
        assert replica.run("--until-after-gtids", str(history.gtids)) == FINDING
        words = replica.last_line()
        found = re.search(r"worker (\d) failed at (\S+:\d+): .*few", words)
        assert found, words
        failed = next(each for each in history.entries if str(each.gtid) == found[2])
        assert b"bank.a1/" in failed.payload
        assert failed.gtid
        assert failed.gtid not in bank.executed()
        assert "mend the cause and start the replica again" in words
        bank.query("ALTER TABLE bank_a1 DROP CONSTRAINT few")
        assert replica.run("--until-after-gtids", str(history.gtids)) == FINE, replica.last_line()
    assert_whole(bank, history)


def test_a_row_that_no_table_is_mapped_to_stops_it_until_one_is(
    bank: Bank, shared: tuple[LocalGroup, History], tmp_path: Path
) -> None:
    group, history = shared
    bank.make_other_rows()
    bank.mapping.write_text(MAPPING.replace('[tables."*"]', ""))
    with bank.replica(tmp_path, group, "database") as replica:
        assert replica.run("--until-after-gtids", str(history.gtids)) == FINDING
        assert "is of table 'audit.log', which has no mapping" in replica.last_line()
        bank.mapping.write_text(MAPPING)
        assert replica.run("--until-after-gtids", str(history.gtids)) == FINE, replica.last_line()
    assert_whole(bank, history)


def test_a_row_that_somebody_has_locked_is_tried_again_until_it_is_free(
    bank: Bank, shared: tuple[LocalGroup, History], tmp_path: Path
) -> None:
    group, history = shared
    with bank.replica(tmp_path, group, "logical-clock") as replica:
        assert replica.run("--until-after-gtids", str(history.entries[0].gtid)) == FINE
        with bank.connect() as session, session.cursor() as cursor:
            cursor.execute("BEGIN")
            for table in bank.tables:
                cursor.execute(f"SELECT * FROM {table} FOR UPDATE")
            replica.start("--until-after-gtids", str(history.gtids))
            wait_for("a retry", lambda: _retried(replica))
            cursor.execute("COMMIT")
        assert replica.wait(120) == FINE, replica.last_line()
    assert_whole(bank, history)


def _retried(replica: ReplicaProcess) -> int:
    workers = replica.status().get("workers", [])
    return sum(int(worker["retried_transactions"]) for worker in workers)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["logical-clock", "table"])
def test_when_its_server_crashes_it_goes_on_by_itself(
    source: LocalGroup, tmp_path: Path, scheme: str
) -> None:
    """A backend that is killed takes all others with it; PostgreSQL then recovers."""
    with ExitStack() as stack:
        stack.enter_context(servers.where_installed())
        server = servers.PostgreSqlServer(tmp_path / "server", servers.PREPARING)
        stack.enter_context(server)
        bank = Bank("postgresql", server.dsn, tmp_path)
        replica = stack.enter_context(bank.replica(tmp_path, source, scheme))
        sessions = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        load = Load(list(source.addresses.values()))
        with load.running():
            replica.start()
            wait_for("progress", lambda: len(bank.accounts()) > 0)
            before = bank.query(sessions)
            os.kill(before[0][0], signal.SIGKILL)
            wait_for("an end of all sessions", lambda: _are_gone(bank, sessions, before))
            load.wait_for_commits(20)
        assert_goes_on(bank, replica, History(source.addresses["m1"]))


@pytest.mark.slow
def test_when_its_server_is_killed_and_started_again_it_goes_on_by_itself(
    source: LocalGroup, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        stack.enter_context(servers.where_installed())
        server = stack.enter_context(servers.MariaDbServer(tmp_path / "server"))
        with closing(connect_mariadb(server.url)) as session, session.cursor() as cursor:
            cursor.execute("CREATE DATABASE bank")
        bank = Bank("mariadb", server.url_of("bank"), tmp_path)
        replica = stack.enter_context(bank.replica(tmp_path, source, "rows"))
        with Load(list(source.addresses.values())).running():
            replica.start()
            wait_for("progress", lambda: len(bank.accounts()) > 0)
            server.kill()
            wait_for("the failure", lambda: replica.events("target_failed"))
            server.start()
            server.wait_ready()
        assert_goes_on(bank, replica, History(source.addresses["m1"]))


def _are_gone(bank: Bank, sessions: str, before: list[tuple[Any, ...]]) -> bool:
    """Whether a server that takes sessions again has none of those."""
    with suppress(psycopg.OperationalError):
        return not set(before) & set(bank.query(sessions))
    return False


def assert_goes_on(bank: Bank, replica: ReplicaProcess, history: History) -> None:
    """The replica, which lives, comes to all that its source has."""
    wait_for("the rest", lambda: _has_all(bank, history))
    assert replica.stop() == FINE, replica.last_line()
    assert_whole(bank, history)


def _has_all(bank: Bank, history: History) -> bool:
    """Whether everything is visible; not while the server recovers."""
    with suppress(psycopg.OperationalError, pymysql.err.OperationalError):
        return bank.rows() == history.rows
    return False


def test_two_replicas_do_not_have_one_name_in_one_database(
    bank: Bank, shared: tuple[LocalGroup, History], tmp_path: Path
) -> None:
    group, history = shared
    with (
        bank.replica(tmp_path, group, "table") as replica,
        bank.replica(tmp_path / "second", group, "table") as second,
    ):
        replica.start()
        replica.wait_for_start()
        assert second.run() == USAGE
        assert "another process writes here as replica replica" in second.last_line()
        wait_for("everything", lambda: _has_all(bank, history))
        assert replica.stop() == FINE, replica.last_line()
    assert_whole(bank, history)


@pytest.mark.parametrize("address", ["postgresql://u@127.0.0.1:1/d", "mysql://u@127.0.0.1:1/d"])
def test_a_server_that_cannot_be_reached_is_named(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUPCERT_TRANSACTION_RETRIES", "1")
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(MAPPING)
    arguments = ("--mapping", str(mapping))
    with ReplicaProcess(tmp_path, ["127.0.0.1:1"], address, "table", *arguments) as replica:
        assert replica.run() == UNAVAILABLE
        assert len(replica.events("target_failed")) == 1
        assert "127.0.0.1" in replica.last_line()
