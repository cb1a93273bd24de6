"""`groupcert postgresql attach` and `detach`: what they print, and how they end."""

import json

import psycopg
import pytest
from typer.testing import CliRunner, Result

from groupcert.applier.errors import UnsuitableTarget
from groupcert.certifier.errors import InvalidSetting
from groupcert.members.commands.cli import app


def run(*arguments: str) -> Result:
    """Runs `groupcert postgresql`."""
    return CliRunner().invoke(app, ["postgresql", *arguments])


@pytest.fixture
def dsn(postgresql_dsn: str) -> str:
    """A server with a table that fits and one that does not."""
    with psycopg.connect(postgresql_dsn) as session:
        session.execute("CREATE TABLE things (id serial PRIMARY KEY); CREATE TABLE keyless (n int)")
    return postgresql_dsn


def test_attach_exits_with_1_if_a_table_is_kept_out_and_says_why(dsn: str) -> None:
    done = run("attach", "--dsn", dsn)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "attached public.things",
        "kept out public.keyless: it has no primary key",
        "sequence public.things_id_seq gives the same numbers as at other servers: give each its"
        " own by --sequence-offset and --sequence-increment",
    ]
    numbers = ("--sequence-offset", "2", "--sequence-increment", "3")
    done = run("attach", "--dsn", dsn, "--tables", "public.things", *numbers)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "attached public.things",
        "sequence public.things_id_seq goes on with 2",
    ]
    done = run("attach", "--dsn", dsn, "--json")
    assert json.loads(done.stdout) == {
        "attached": ["public.things"],
        "kept_out": {"public.keyless": "it has no primary key"},
        "sequences": {"public.things_id_seq": 2},
        "sequences_alike": [],
        "is_moved": False,
    }
    done = run("detach", "--dsn", dsn)
    assert (done.exit_code, done.stdout) == (0, "detached public.things\n")


@pytest.mark.parametrize(
    ("arguments", "kind", "problem"),
    [
        (("--tables", "shop.*"), UnsuitableTarget, r"no table matches shop\.\*"),
        (("--sequence-offset", "2"), InvalidSetting, "--sequence-increment is ''"),
    ],
)
def test_attach_changes_nothing_where_it_cannot(
    dsn: str, arguments: tuple[str, ...], kind: type[Exception], problem: str
) -> None:
    done = run("attach", "--dsn", dsn, *arguments)
    with pytest.raises(kind, match=problem):
        raise done.exception or AssertionError(done.output)
    with psycopg.connect(dsn) as session:
        assert session.execute("SELECT to_regnamespace('groupcert')").fetchone() == (None,)
