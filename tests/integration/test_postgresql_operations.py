"""What an operator of PostgreSQL servers does with a group: joins another one, changes the schema.

Aim: all servers have the same rows at the end, whatever was committed meanwhile; where something
cannot be done, an error says why, and nothing is left of it. The server that joins is a database of
its own beside one of the others.
"""

import json
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.commands.cli import app
from groupcert.members.postgresql.status import ask_member
from tests.datadriven import Command, run_script
from tests.integration.postgresql_group import (
    PostgresqlGroup,
    Primary,
    group_verb,
    increments,
    total_of,
)
from tests.integration.waiting import wait_for
from tests.transcripts import FOLDER, Terminal

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.in_turns]


def change_schema(file: Path, statements: str, *arguments: str) -> Result:
    """Runs `groupcert postgresql ddl`."""
    file.write_text(statements)
    return CliRunner().invoke(app, ["postgresql", "ddl", str(file), *arguments])


def test_what_cannot_be_done_is_refused_as_the_transcript_says(
    servers3: PostgresqlGroup,
    empty: Primary,
    rewrite: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    servers = dict(zip(("first", "second", "third"), servers3.primaries, strict=True))
    servers["empty"] = empty
    names = {name: server.dsn for name, server in servers.items()}
    names |= {"m1": servers["first"].address}
    for name in ("nothing", "old"):
        (tmp_path / name).mkdir()
        names[name] = str(tmp_path / name)
    old = tmp_path / "old" / "pg_dump"
    old.write_text("#!/bin/sh\necho 'pg_dump (PostgreSQL) 9.6.24'\n")
    old.chmod(0o755)
    before = servers3.settle()[-1]

    def sql(command: Command) -> str:
        """sql at=: what a server answers to the body."""
        rows = servers[str(command.take("at")[0])].query("\n".join(command.body))
        return "\n".join(" ".join(map(str, row)) for row in rows)

    def versions(_: Command) -> str:
        """versions: whether anything was certified since the script began."""
        return "as before" if servers3.settle()[-1] == before else "others"

    terminal = Terminal(tmp_path, monkeypatch, capsys, names)
    script = FOLDER / "servers" / "refused.txt"
    run_script(script, {**terminal.handlers, "sql": sql, "versions": versions}, rewrite=rewrite)


def test_a_schema_change_comes_at_one_place_of_the_order(
    servers3: PostgresqlGroup, tmp_path: Path
) -> None:
    before = total_of(servers3)
    statements = """
        ALTER TABLE accounts ADD touched int NOT NULL DEFAULT 7;
        ALTER TABLE accounts ADD CHECK (balance > -1000000);
        CREATE TABLE notes (id bigserial PRIMARY KEY, account int REFERENCES accounts);
    """
    dsns = [part for primary in servers3.primaries for part in ("--dsn", primary.dsn)]
    with increments(servers3.primaries, [4, 5, 6]) as load:
        wait_for("some commits", lambda: min(load.done) > 5)
        member = servers3.primaries[0].address
        done = change_schema(
            tmp_path / "change.sql", statements, *dsns, "--member", member, "--attach", "--json"
        )
        assert done.exit_code == 0, done.output
        more = sum(load.done)
        wait_for("more commits", lambda: sum(load.done) > more + 5)
    assert json.loads(done.stdout)["missing"] == {}
    total = total_of(servers3) - before
    assert sum(load.done) <= total <= sum(load.done) + load.unknown
    query = "INSERT INTO notes (account) VALUES ({}) RETURNING id"  # one parent's would conflict
    ids = [
        primary.query(query.format(account))[0][0]
        for account, primary in enumerate(servers3.primaries, 1)
    ]
    assert [number % 4 for number in ids] == [1, 2, 3]
    *_, last = servers3.primaries
    wait_for("the notes are everywhere", lambda: len(last.query("SELECT * FROM notes")) == 3)
    assert {row[3] for row in servers3.settle()[0]} == {7}


def test_a_transaction_that_began_before_a_schema_change_runs_again(
    servers3: PostgresqlGroup, tmp_path: Path
) -> None:
    first, second, third = servers3.primaries
    servers3.settle()
    with second.connect() as session:
        session.execute("INSERT INTO orders VALUES (10, 1, 1)")
        servers = ("--dsn", first.dsn, "--dsn", third.dsn, "--dsn", second.dsn)
        statements = "CREATE TABLE unrelated (id int PRIMARY KEY)"
        change_schema(tmp_path / "change.sql", statements, *servers, "--member", second.address)
        with pytest.raises(psycopg.errors.SerializationFailure) as failure:
            session.commit()
    assert "the schema was written by" in (failure.value.diag.message_detail or "")
    servers3.settle()


def test_a_server_that_cannot_change_stops_and_goes_on_once_it_can(
    servers3: PostgresqlGroup, tmp_path: Path
) -> None:
    first, second, third = servers3.primaries
    file = tmp_path / "change.sql"
    servers = ("--dsn", first.dsn, "--dsn", second.dsn)
    statements = "ALTER TABLE orders ADD weight int"
    done = change_schema(file, statements, *servers, "--member", first.address)
    assert done.exit_code == 0, done.output
    wait_for("it stops", lambda: "nobody has approved it" in third.member.log.read_text())
    second.query("INSERT INTO orders VALUES (11, 1, 1, 5)")
    reason = "SELECT coalesce(out_of_group, '') FROM groupcert.settings"
    wait_for("it says why", lambda: statements in third.query(reason)[0][0])
    done = change_schema(file, statements, "--dsn", third.dsn, "--approve")
    assert done.exit_code == 0, done.output
    wait_for("it takes commits", third.takes_commits)
    assert (11, 1, 1, 5) in servers3.settle()[1]


def test_a_transaction_that_a_server_cannot_execute_stops_that_server_until_it_is_left_out(
    servers3: PostgresqlGroup,
) -> None:
    first, second, third = servers3.primaries
    servers3.settle()

    def alone(statement: str) -> None:
        with psycopg.connect(third.dsn) as session:
            session.read_only = False
            session.execute("SET session_replication_role TO replica")
            session.execute(statement.encode())

    # Its SQLSTATE is of the class of those by which a server says that it goes.
    alone(
        "CREATE FUNCTION small(account int) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN"
        " IF account > 5 THEN RAISE object_not_in_prerequisite_state; END IF; RETURN true; END';"
        "ALTER TABLE orders ADD CONSTRAINT small CHECK (public.small(account))"
    )
    first.query("INSERT INTO orders (id, line, account) VALUES (60, 1, 3)")
    first.query("INSERT INTO orders (id, line, account) VALUES (61, 1, 1), (62, 1, 7)")
    second.query("INSERT INTO orders (id, line, account) VALUES (63, 1, 3)")

    def stopped() -> str:
        lines = third.member.log.read_text().splitlines()
        return next((line for line in lines if "ROWS" in line or "cannot execute" in line), "")

    said = wait_for("it stops", stopped)
    assert "object_not_in_prerequisite_state" in said and "(at row 'public.orders/62/1')" in said
    gtid = said.partition("postgresql skip ")[2].split()[0]
    arguments = ["--reason", "small", "--dsn", third.dsn]
    skip = ["postgresql", "skip", f"{gtid}9", *arguments]
    assert isinstance(CliRunner().invoke(app, skip).exception, InvalidSetting)
    done = CliRunner().invoke(app, ["postgresql", "skip", gtid, *arguments, "--json"])
    assert sorted(json.loads(done.stdout)["rows"]) == ["public.orders/61/1", "public.orders/62/1"]
    wait_for("it takes commits", third.takes_commits)
    assert ask_member(third.dsn).skipped_transactions == 1
    done = CliRunner().invoke(app, ["verify", first.address, "--json"])
    assert done.exit_code == 1
    assert {
        (each["member"], each["difference"], each["key"])
        for each in json.loads(done.stdout)["differences"]
    } == {
        ("m3", "missing", "public.orders/61/1"),
        ("m3", "missing", "public.orders/62/1"),
    }
    alone("ALTER TABLE orders DROP CONSTRAINT small; DROP FUNCTION small")
    ((kept,),) = third.query("SELECT rows FROM groupcert.skipped")
    alone(
        "INSERT INTO orders SELECT r.* FROM groupcert.skipped, jsonb_each(rows),"
        " jsonb_populate_record(NULL::orders, value) r"
    )
    assert kept["public.orders/62/1"]["account"] == 7
    assert group_verb("rejoin", third, "--unfence")
    wait_for("it takes commits", third.takes_commits)
    done = CliRunner().invoke(app, ["verify", first.address])
    assert done.exit_code == 0, done.output
    wait_for("it is known", lambda: not ask_member(third.dsn).skipped_transactions)
    assert servers3.settle()


@pytest.mark.parametrize(
    ("gtid_set", "problem"),
    [
        ("nonsense", "groupcert.executed_set: invalid GTID set 'nonsense'"),
        ("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-7", "which the log has not"),
    ],
    ids=["unreadable", "another group's"],
)
def test_a_server_with_a_wrong_gtid_set_is_read_only_and_says_why(
    servers3: PostgresqlGroup, gtid_set: str, problem: str
) -> None:
    *_, last = servers3.primaries
    servers3.settle()
    last.member.kill()
    ((before,),) = last.query("SELECT gtid_set FROM groupcert.executed_set")
    note = "UPDATE groupcert.executed_set SET gtid_set = %s"
    with psycopg.connect(last.dsn) as session:
        session.read_only = False  # Its server knows that the member has died.
        session.execute(note, (gtid_set,))
    last.member.start()
    query = "SELECT coalesce(out_of_group, '') FROM groupcert.settings"
    wait_for("it says why", lambda: problem in last.query(query)[0][0])
    last.member.kill()
    with psycopg.connect(last.dsn) as session:
        session.read_only = False
        session.execute(note, (before,))
    last.member.start()

    def serves() -> bool:
        if not last.takes_commits():
            group_verb("rejoin", last, "--unfence")  # It may be fenced, and may not answer yet.
            return False
        return True

    wait_for("it takes commits", serves)
    assert servers3.settle()
