"""Test suites of others: each is run at a server alone, then at one of a group of three."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg

from tests import servers
from tests.foreign import django_suite, pytest_suites
from tests.foreign.alembic_steps import run_steps
from tests.foreign.door import open_door
from tests.foreign.foreign_group import DATABASE, ForeignGroup, foreign_group
from tests.foreign.outcomes import Outcomes, outcomes_of, read_records
from tests.foreign.pgbench_load import run_load

ALONE = (
    "fsync=off",
    "max_prepared_transactions=20",
    "default_transaction_isolation=repeatable read",
)


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
    **{
        name: Suite(
            django_suite.find_sources,
            None,
            partial(django_suite.run_suite, setting),
            "the source distribution of Django, unpacked",
        )
        for name, setting in django_suite.SETTINGS.items()
    },
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


class SourcesMissing(Exception):
    """A program cannot be run: its sources are not there."""

    def __init__(self, sources: Path, advice: str) -> None:
        super().__init__(f"{sources} has no sources of it: {advice}")


def run_suite(name: str, sources: Path, kept: Path, labels: list[str]) -> Outcomes:
    """Runs a suite; returns what came out.

    Args:
        kept: Gets the records of all tests. A file `NAME-alone.jsonl` there stands for the run
            without a group.

    Raises:
        SourcesMissing: They are not there.
        ServerMissing: PostgreSQL is not there.
    """
    suite = SUITES[name]
    tests = suite.find(sources)
    if tests is None:
        raise SourcesMissing(sources, suite.advice)
    alone, records, log = (kept / f"{name}{end}" for end in ("-alone.jsonl", ".jsonl", ".log"))
    with tempfile.TemporaryDirectory(prefix="foreign-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        if not alone.exists():
            with servers.PostgreSqlServer(folder / "alone", *ALONE) as server:
                dsn = prepared(server, suite.before)
                suite.run(tests, dsn, {}, alone, log, labels)
        records.unlink(missing_ok=True)
        with foreign_group(folder) as group:
            if suite.before is not None:
                group.make(DATABASE, *suite.before)
                group.spread(DATABASE)
            with open_door(group, folder) as door:
                suite.run(tests, group.dsns[0], door, records, log, labels)
            before = read_records(alone)
            outcomes = outcomes_of(name, read_records(records), before, is_whole=not labels)
            if not outcomes.passed:
                outcomes.fails(name, [(None, f"no test has passed: see {log}")])
            outcomes.differ(group.differences())
            outcomes.more = group.summary()
            for path in folder.glob("group/m*.log"):
                (kept / f"{name}-{path.name}").write_bytes(path.read_bytes())
    return outcomes


def run_load_program(program: str, seconds: float) -> Outcomes:
    """Runs pgbench, through pgbouncers or directly.

    Raises:
        ServerMissing: PostgreSQL or pgbouncer is not there.
    """
    with running() as (folder, group):
        outcomes = Outcomes(program)
        run_load(outcomes, group, seconds, folder if program == "pgbouncer" else None)
        return outcomes


def run_alembic(sources: Path) -> Outcomes:
    """Runs Alembic's migrations.

    Raises:
        SourcesMissing: Alembic is not there.
        ServerMissing: PostgreSQL is not there.
    """
    packages = sources / "packages"
    if not (packages / "alembic").is_dir():
        raise SourcesMissing(packages, f"pip install --target {packages} alembic")
    with running() as (folder, group):
        return run_steps(group, folder, packages)


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
