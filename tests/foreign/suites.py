"""Test suites of others: each is run at a server alone, then at one of a group of three."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests import servers
from tests.foreign import django_suite, pytest_suites
from tests.foreign.alembic_steps import run_steps
from tests.foreign.door import open_door
from tests.foreign.foreign_group import DATABASE, ForeignGroup, foreign_group
from tests.foreign.outcomes import failures, outcomes_of, read_records
from tests.foreign.pgbench_load import run_load

ISOLATION = "default_transaction_isolation=repeatable read"


@dataclass(frozen=True)
class Suite:
    """Where its sources are, and how its tests run at a server. `before`: what they need in their
    database; None: they make it themselves.
    """

    find: Callable[[Path], Path | None]
    before: tuple[str, ...] | None
    run: Callable[[Path, str, dict[str, str], Path, Path, list[str]], int]
    advice: str


SUITES = {
    "django": Suite(
        django_suite.find_sources,
        None,
        django_suite.run_suite,
        "the source distribution of Django, unpacked",
    ),
    "sqlalchemy": Suite(
        pytest_suites.find_sqlalchemy,
        pytest_suites.SQLALCHEMY_BEFORE,
        pytest_suites.run_sqlalchemy,
        "a clone of SQLAlchemy",
    ),
    "psycopg": Suite(
        pytest_suites.find_psycopg,
        (),
        pytest_suites.run_psycopg,
        "a clone of psycopg, and the package anyio in `packages` beside it",
    ),
}


def run_suite(name: str, sources: Path, kept: Path, labels: list[str]) -> dict[str, Any]:
    """Runs a suite; returns what came out, or why it was skipped.

    Args:
        kept: Gets the records of all tests. A file `NAME-alone.jsonl` there stands for the run
            without a group.
    """
    suite = SUITES[name]
    tests = suite.find(sources)
    if tests is None:
        return {"skipped": f"{sources} has no sources of it: {suite.advice}"}
    alone, records, log = (kept / f"{name}{end}" for end in ("-alone.jsonl", ".jsonl", ".log"))
    try:
        with tempfile.TemporaryDirectory(prefix="foreign-") as made:
            folder = Path(made)
            folder.chmod(0o755)
            if not alone.exists():
                with servers.postgresql_server(folder / "alone", "fsync=off", ISOLATION) as server:
                    dsn = prepared(server, suite.before)
                    suite.run(tests, dsn, {}, alone, log, labels)
            records.unlink(missing_ok=True)
            with foreign_group(folder) as group:
                if suite.before is not None:
                    group.make(DATABASE, *suite.before)
                    group.spread(DATABASE)
                with open_door(group, folder) as door:
                    dsn = group.dsns[0]
                    code = suite.run(tests, dsn, door, records, log, labels)
                summary = group.summary() if group.database else {}
                for path in folder.glob("companion-*.log"):
                    (kept / f"{name}-{path.name}").write_bytes(path.read_bytes())
    except servers.ServerMissing as error:
        return {"skipped": str(error)}
    outcomes = outcomes_of(read_records(records), failures(alone))
    return {**outcomes.document(), "exit code": code, "group": summary}


def run_load_program(seconds: float, *, has_bouncer: bool) -> dict[str, Any]:
    """Runs pgbench, through pgbouncers or directly."""
    try:
        with running() as (folder, group):
            return run_load(group, seconds, through_bouncer=folder if has_bouncer else None)
    except servers.ServerMissing as error:
        return {"skipped": str(error)}


def run_alembic(sources: Path) -> dict[str, Any]:
    """Runs Alembic's migrations."""
    packages = sources / "packages"
    if not (packages / "alembic").is_dir():
        return {"skipped": f"{packages} has no Alembic: pip install --target {packages} alembic"}
    try:
        with running() as (folder, group):
            return run_steps(group, folder, packages)
    except servers.ServerMissing as error:
        return {"skipped": str(error)}


@contextmanager
def running() -> Iterator[tuple[Path, ForeignGroup]]:
    """Starts a group in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="foreign-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        with foreign_group(folder) as group:
            yield folder, group


def prepared(server: servers.PostgreSqlServer, before: tuple[str, ...] | None) -> str:
    """Makes the database of a suite at a server without a group; returns where it is."""
    if before is None:
        return server.dsn
    dsn = server.dsn_of(DATABASE)
    for place, statements in ((server.dsn, (f"CREATE DATABASE {DATABASE}",)), (dsn, before)):
        with closing(psycopg.connect(place, autocommit=True)) as session:
            for statement in statements:
                session.execute(statement.encode())
    return dsn
