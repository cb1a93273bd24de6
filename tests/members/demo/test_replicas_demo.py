"""The demo of replicas: where it cannot run, and how its lag is measured."""

import shutil
from pathlib import Path

import pytest

from groupcert.members.commands import failures
from groupcert.members.commands.cli import app
from groupcert.members.demo.followers import Database, SchemeReplica
from groupcert.members.demo.replicas_demo import SourceHistory
from groupcert.members.errors.usage import ReplicaEnded
from tests import servers

USAGE, UNAVAILABLE = 2, 3


def test_without_mariadb_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert failures.run(app, ["demo", "--replicas"]) == UNAVAILABLE
    told = capsys.readouterr().err
    assert "no MariaDB server here: sudo apt-get install mariadb-server" in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [["--postgresql"], ["--certification-log", "logs"]])
def test_what_is_a_groups_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert failures.run(app, ["demo", "--replicas", *flags]) == USAGE
    assert "expected without --postgresql and --certification-log" in capsys.readouterr().err


def test_lag_is_the_age_of_the_oldest_commit_that_is_not_executed() -> None:
    history = SourceHistory()
    assert history.age(0, 5.0) == 0.0, "nothing is known of the source"
    for moment, position in ((10.0, 7), (12.0, 17), (13.0, 17), (14.0, 27)):
        history.add(moment, position)
    assert history.age(27, 20.0) == history.age(30, 20.0) == 0.0
    assert history.age(17, 20.0) == 7.0, "since it was idle"
    assert history.age(12, 20.0) == 9.0
    assert history.age(0, 20.0) == 10.0, "as long as it is known"


@pytest.mark.database
def test_a_replica_that_ends_is_named_with_the_last_that_it_said(tmp_path: Path) -> None:
    with servers.where_installed():
        source = servers.MariaDbServer(tmp_path / "source")
    target = Database("MariaDB", "nosql://127.0.0.1/rows", lambda statement: [])
    replica = SchemeReplica("jobs --conflicts graph", target, source, tmp_path)
    with pytest.raises(
        ReplicaEnded, match="replica jobs graph ended with exit status 2"
    ) as failure:
        replica.prepare(1)
    replica.close()
    assert "nosql" in str(failure.value)
    assert str(tmp_path / "jobs-graph-mariadb.log") in str(failure.value)
