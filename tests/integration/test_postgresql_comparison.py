"""Rows of PostgreSQL servers are compared: what somebody has changed there is found.

Servers and members are real processes; rows are changed at one server by a superuser whose session
no trigger of the group sees. Rows that are equal are never said to differ, whatever is committed.
"""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from typer.testing import CliRunner

from groupcert.members.client.client import Client
from groupcert.members.commands.cli import app
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.postgresql.ddl import (
    approve_at,
    certify,
    change_for,
    try_at,
    wait_for_servers,
)
from groupcert.members.postgresql.status import ask_member
from groupcert.v1 import group_pb2
from tests import servers
from tests.commands import groupcert
from tests.integration.postgresql_group import PostgresqlGroup, Primary, postgresql_group
from tests.integration.waiting import SECONDS_MAX, wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.in_turns]

ROUNDS = 20
FENCED, ONLINE = group_pb2.MEMBER_STATE_FENCED, group_pb2.MEMBER_STATE_ONLINE
STATEMENTS = (
    "UPDATE accounts SET balance = balance + 1, email = 'n{0}@x' WHERE id = {0} % 38 + 1",
    "INSERT INTO parts VALUES ({0}, date '1999-12-25' + {0} % 14, 'x') ON CONFLICT DO NOTHING",
    "UPDATE parts SET at = at + 7, note = NULL WHERE id = {0}",
    "DELETE FROM parts WHERE id = {0} / 2",
    "INSERT INTO awkward VALUES ({0} * 10::numeric ^ 60, {0}, ARRAY[(1, 'a')::pair, NULL],"
    " B'10101', '(1e-300,0.1)', '{{(0.3,0.2),(0.1,0.1)}}', '[2:3]={{NULL,{0}}}', '1.17549435e-38',"
    " 'a', 'b')",
    "INSERT INTO things VALUES ('thing {0}/%', 'green', {0}.5, '-Infinity', '\\x00ff',"
    " '{{\"a\": {0}}}', '{{a,NULL}}', '0044-03-15 02:00+00 BC',"
    " '-178000000 years 00:00:00.000001', NULL)"
    " ON CONFLICT (name) DO UPDATE SET weight = {0}, at = NULL, extra = 'null'",
    "INSERT INTO people (email, number) VALUES ('{0}', NULL)",
    "INSERT INTO orders SELECT {0}, line, {0} % 40 + 1 FROM generate_series(1, 9) line",
)
TRUNCATED_SHARE = 0.02


@contextmanager
def written(primaries: list[Primary], *, truncates: bool = False) -> Iterator[list[int]]:
    """Has a client at each server write all kinds of rows until the block ends; yields the numbers
    of their commits. `truncates`: now and then they truncate a table, too.
    """
    stopped, done = threading.Event(), [0] * len(primaries)

    def write(number: int, primary: Primary) -> None:
        chance = random.Random(number)
        while not stopped.is_set():
            # Its server may be read-only, or have ended the session.
            with suppress(psycopg.Error), primary.connect() as session:
                while not stopped.is_set():
                    statements = chance.choices(STATEMENTS, k=2)
                    if truncates and chance.random() < TRUNCATED_SHARE:
                        statements.append("TRUNCATE orders")
                    lost = suppress(errors.SerializationFailure, errors.UniqueViolation)
                    with lost, session.transaction():
                        for each in statements:
                            session.execute(each.format(chance.randint(1, 400)).encode())
                        done[number] += 1

    writers = [
        threading.Thread(target=write, args=(number, primary))
        for number, primary in enumerate(primaries)
    ]
    for writer in writers:
        writer.start()
    try:
        yield done
    finally:
        stopped.set()
        for writer in writers:
            writer.join()


def verified(address: str) -> tuple[int, dict[str, Any]]:
    """The exit code of `groupcert verify`, and its answer."""
    done = CliRunner().invoke(app, ["verify", address, "--json"])
    assert done.exit_code in (0, 1), done.exception or done.output
    return done.exit_code, json.loads(done.stdout)


def alone(primary: Primary, *statements: str) -> None:
    """Runs statements at one server, behind the group's back."""
    with psycopg.connect(primary.dsn) as session:
        session.read_only = False
        session.execute("SET session_replication_role TO replica")
        for each in statements:
            session.execute(each.encode())


def state_of(group: LocalGroup, name: str) -> int:
    """A member's state."""
    return group.status(name).observer.state


def test_equal_rows_never_differ_while_all_write(servers3: PostgresqlGroup) -> None:
    versions: list[int] = []
    with written([*servers3.primaries], truncates=True) as done:
        wait_for("some commits", lambda: min(done) > 20)
        for number in range(ROUNDS):
            code, found = verified(servers3.primaries[number % 3].address)
            assert (code, found["equal"], found["differences"]) == (0, True, [])
            assert len({each["rows"] for each in found["members"]}) == 1
            versions.append(found["version"])
    assert versions == sorted(set(versions)), "somebody wrote all the time"
    servers3.settle()


def test_rows_that_one_server_has_otherwise_are_named_and_it_is_read_only(
    servers3: PostgresqlGroup,
) -> None:
    first, _, third = servers3.primaries
    servers3.settle()
    first.query("INSERT INTO accounts VALUES (600, 1, NULL), (601, 1, NULL)")
    with written([*servers3.primaries]) as done:
        wait_for("some commits", lambda: min(done) > 20)
        before = verified(first.address)
        assert (before[0], before[1]["equal"]) == (0, True)
        alone(
            third,
            "UPDATE accounts SET balance = 2 WHERE id = 600",
            "DELETE FROM accounts WHERE id = 601",
            "INSERT INTO parts VALUES (602, '1999-01-01', 'x')",
        )
        code, found = verified(first.address)
        assert (code, found["equal"]) == (1, False)
        assert {
            (each["member"], each["difference"], each["key"]) for each in found["differences"]
        } == {
            ("m3", "other value", "public.accounts/600"),
            ("m3", "missing", "public.accounts/601"),
            ("m3", "extra", "public.parts/602/1999-01-01"),
        }
        wait_for("m3 to be fenced", lambda: state_of(servers3.group, "m3") == FENCED)
    reason = servers3.group.status("m3").observer.reason
    assert "ROWS_DIFFER" in reason and "mend the rows there as a superuser" in reason

    def refused() -> str:
        with suppress(errors.SerializationFailure), third.connect() as session:
            try:
                session.execute("UPDATE accounts SET balance = 3 WHERE id = 600")
                session.commit()
            except errors.ReadOnlySqlTransaction as error:
                return str(error)
        return ""

    assert wait_for("it takes no writes", refused)
    said = third.query("SELECT out_of_group FROM groupcert.settings")[0][0]
    assert "ROWS_DIFFER" in said
    alone(
        third,
        "UPDATE accounts SET balance = 1 WHERE id = 600",
        "INSERT INTO accounts VALUES (601, 1, NULL)",
        "DELETE FROM parts WHERE id = 602",
    )
    assert groupcert("group", "rejoin", "--unfence", third.address).returncode == 0
    wait_for("it takes commits", third.takes_commits)
    code, found = verified(third.address)
    assert (code, found["equal"]) == (0, True)
    servers3.settle()


def test_rows_are_compared_once_more_where_the_schema_changes_meanwhile(
    servers3: PostgresqlGroup,
) -> None:
    first, *_ = servers3.primaries
    for number in range(4):
        first.query(
            f"INSERT INTO bulk SELECT number, repeat('a', 20000), NULL FROM generate_series("
            f"{1000 * number + 1}, {1000 * number + 800}) number"
        )
    servers3.settle()
    group = servers3.group
    dsns = [primary.dsn for primary in servers3.primaries]
    change = change_for(dsns[0], "ALTER TABLE bulk ADD COLUMN more text DEFAULT 'new'")
    newest = [try_at(dsn, change) for dsn in dsns]
    approve_at(dsns, change)
    seen = group.status("m1").comparison.position
    answers: list[tuple[int, dict[str, Any]]] = []
    asking = threading.Thread(target=lambda: answers.append(verified(first.address)))
    asking.start()
    wait_for("a comparison", lambda: group.status("m1").comparison.position > seen)
    begun = group.status("m1").comparison.position
    with Client(first.address) as client:
        certify(dsns, client, change, newest[0])
    assert not wait_for_servers(dsns, change, seconds=SECONDS_MAX)
    asking.join()
    ((code, found),) = answers
    assert (code, found["equal"]) == (0, True)
    assert found["position"] > begun, "the rows were read before the schema changed"
    assert all("rows_not_compared" in each.member.log.read_text() for each in servers3.primaries)
    first.query("DELETE FROM bulk")
    servers3.settle()


def test_a_table_that_is_attached_at_one_server_after_the_other_makes_no_difference(
    servers3: PostgresqlGroup,
) -> None:
    first, *others = servers3.primaries
    late = "CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)"
    first.attach(late, tables=("public.late",))
    code, found = verified(first.address)
    assert (code, found["equal"], found["differences"]) == (1, False, [])
    kinds = {each["member"]: each["tables"] for each in found["members"]}
    assert kinds["m2"] == kinds["m3"] != kinds["m1"]
    assert all(state_of(servers3.group, name) == ONLINE for name in kinds)
    for other in others:
        other.attach(late, tables=("public.late",))
    code, found = verified(first.address)
    assert (code, found["equal"]) == (0, True)


def test_a_transaction_that_has_locked_a_table_holds_up_no_commit_of_others(
    servers3: PostgresqlGroup,
) -> None:
    first, second, _ = servers3.primaries
    servers3.settle()
    seen = servers3.group.status("m1").comparison.position
    answers: list[tuple[int, dict[str, Any]]] = []
    asking = threading.Thread(target=lambda: answers.append(verified(first.address)))
    with second.connect() as session:
        session.execute("TRUNCATE orders")
        asking.start()
        wait_for("a comparison", lambda: servers3.group.status("m2").comparison.position > seen)
        assert second.takes_commits()
        assert "m2" in {
            each.name
            for each in servers3.group.status("m2").comparison.members
            if not each.answered
        }
    asking.join()
    ((code, found),) = answers
    assert (code, found["equal"]) == (0, True)


def test_a_backup_is_the_servers_own(servers3: PostgresqlGroup, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    done = groupcert("backup", servers3.primaries[0].address, "--out", str(folder))
    assert done.returncode == 2
    assert "pg_dump" in done.stderr and "pg_basebackup" in done.stderr
    assert not folder.exists()


def test_a_difference_is_found_within_a_period_and_a_member_without_a_server_is_not_asked_for_it(
    tmp_path: Path,
) -> None:
    with (
        servers.where_installed(),
        postgresql_group(tmp_path, compare_period_s=2) as group,
    ):
        # It lacks account 39, which is from before the tables were attached, and nobody writes.
        group.group.addresses["rows"] = f"{HOST}:{free_port()}"
        group.group.start_member("rows")
        wait_for("it is there", lambda: state_of(group.group, "rows") == ONLINE)
        first, second, third = group.primaries
        first.query("INSERT INTO accounts VALUES (600, 1, NULL)")  # Nobody writes it later.

        def compared() -> int:
            found = group.group.status("m1").comparison
            has_all = len(found.members) == 4 and all(each.answered for each in found.members)
            return found.position if has_all else 0

        with written([*group.primaries]) as done:
            wait_for("some commits", lambda: min(done) > 20)
            seen = wait_for("a comparison", compared)
            wait_for("another one", lambda: compared() > seen)
            found = group.group.status("m1").comparison
            assert not any(each.differing_ranges for each in found.members)
            rows = {each.name: each.rows for each in found.members}
            assert rows["m1"] == rows["m2"] == rows["m3"] > rows["rows"]
            assert {each.name for each in found.members if each.tables} == {"m1", "m2", "m3"}
            alone(second, "UPDATE accounts SET balance = -1 WHERE id = 600")
            wait_for("m2 to be fenced", lambda: state_of(group.group, "m2") == FENCED)
        others = {state_of(group.group, name) for name in ("m1", "m3", "rows")}
        assert others == {ONLINE}
        assert first.takes_commits() and third.takes_commits()
        assert not ask_member(third.dsn).out_of_group
