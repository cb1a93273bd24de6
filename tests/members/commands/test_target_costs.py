"""`groupcert whatif --measure`: what real servers cost, and that nothing is left at them."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from groupcert.applier.errors import UnsuitableTarget
from groupcert.members.commands import target_costs
from groupcert.members.commands.cli import app
from groupcert.members.commands.target_costs import DATABASE, costs_at
from groupcert.members.errors.usage import InvalidOption
from tests.servers import (
    PREPARING,
    MariaDbServer,
    PostgreSqlServer,
    connect_mariadb,
    where_installed,
)

pytestmark = pytest.mark.database
TRACE = '{"type": "transaction", "member": "m1", "snapshot_version": "", "write_set": ["d.t/1"]}\n'


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It measures no longer than it has to."""
    monkeypatch.setattr(target_costs, "SECONDS_MAX", 0.0)


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    with where_installed(), MariaDbServer(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSqlServer]:
    folder = tmp_path_factory.mktemp("postgresql")
    with where_installed(), PostgreSqlServer(folder, PREPARING) as server:
        yield server


def run(*words: str) -> Any:
    """What the verb prints as JSON."""
    done = CliRunner().invoke(app, ["whatif", *words, "--workers", "2", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_costs_of_mariadb_can_be_used_again(mariadb: MariaDbServer, tmp_path: Path) -> None:
    trace, report = tmp_path / "trace.jsonl", tmp_path / "report.json"
    trace.write_text(TRACE)
    measured = run(str(trace), "--measure", mariadb.url)
    costs = measured["workload"]["costs"]
    assert costs["job_us"] > 0 and costs["applier_percent"] > 0 and costs["server_percent"] > 0
    assert "the server's" in measured["source"]["notes"][1]
    report.write_text(json.dumps(measured))
    again = run(str(trace), "--like", str(report), "--cores", "7")
    assert again["workload"]["costs"] == {**costs, "cores": 7}
    with closing(connect_mariadb(mariadb.url)) as session, session.cursor() as cursor:
        assert not cursor.execute("SHOW DATABASES LIKE 'groupcert%'")


def test_costs_of_postgresql(postgresql: PostgreSqlServer) -> None:
    costs, [note, *_] = costs_at(postgresql.dsn)
    assert costs.job_us > 0 and costs.server_percent > 0 and costs.commit_server_us > 0
    assert "commit together share a sync" in note or "sync one by one" in note
    with psycopg.connect(postgresql.dsn) as session:
        assert not session.execute("SELECT 1 FROM pg_database WHERE datname ~ 'whatif'").fetchall()


def test_what_a_server_elsewhere_takes_is_waiting(
    postgresql: PostgreSqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_costs, "_HERE", ())
    costs, [note, *_] = costs_at(postgresql.dsn)
    assert costs.server_percent == costs.commit_server_us == 0 < costs.commit_us
    assert "counts as waiting" in note


def test_a_database_that_is_there_stays(mariadb: MariaDbServer) -> None:
    with closing(connect_mariadb(mariadb.url)) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE}")
        with pytest.raises(InvalidOption, match=r"--measure.*without a database groupcert_whatif"):
            costs_at(mariadb.url)
        assert cursor.execute(f"SHOW DATABASES LIKE '{DATABASE}'")
        cursor.execute(f"DROP DATABASE {DATABASE}")


def test_what_is_no_server_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidOption, match=r"--measure.*oracle://\.\.\..*mysql://") as refused:
        costs_at("oracle://me:secret@host/")
    assert "secret" not in str(refused.value)
    with pytest.raises(UnsuitableTarget, match=r"127\.0\.0\.1"):
        costs_at("postgresql://me:secret@127.0.0.1:1/")


def test_costs_are_of_one_target_alone(tmp_path: Path) -> None:
    trace, report = tmp_path / "trace.jsonl", tmp_path / "report.json"
    report.write_text("no report")
    trace.write_text(TRACE)
    for words, problem in (
        (("--like", "wait", "--measure", "mysql://h/"), "none beside --measure"),
        (("--like", str(report)), "a report of groupcert whatif --json"),
    ):
        done = CliRunner().invoke(app, ["whatif", str(trace), *words])
        assert done.exit_code == 1 and problem in str(done.exception)
