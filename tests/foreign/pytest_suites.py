"""SQLAlchemy's tests of its dialect, and psycopg's of transactions and COPY: both by pytest."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INSIDE = Path(__file__).with_name("inside")
SQLALCHEMY = ("test/dialect/test_suite.py", "test/dialect/postgresql")
SQLALCHEMY_BEFORE = (
    "CREATE SCHEMA test_schema",
    "CREATE SCHEMA test_schema_2",
    "CREATE EXTENSION citext",
    "CREATE EXTENSION hstore",
)
PSYCOPG = tuple(
    f"tests/test_{name}.py"
    for name in (
        "transaction",
        "transaction_async",
        "copy",
        "copy_async",
        "pipeline",
        "pipeline_async",
        "prepared",
        "prepared_async",
        "psycopg_dbapi20",
        "cursor",
        "cursor_client",
        "tpc",
    )
)


def find_sqlalchemy(folder: Path) -> Path | None:
    """Returns the folder of SQLAlchemy's sources; None: it is not there."""
    found = next(iter(sorted(folder.glob("sqlalchemy*/test/dialect"))), None)
    return found.parents[1] if found else None


def find_psycopg(folder: Path) -> Path | None:
    """Returns the folder of psycopg's sources; None: it is not there."""
    found = next(iter(sorted(folder.glob("psycopg*/tests/test_copy.py"))), None)
    return found.parents[1] if found else None


def run_sqlalchemy(
    tests: Path, dsn: str, door: dict[str, str], records: Path, log: Path, labels: list[str]
) -> int:
    """Runs SQLAlchemy's tests at a server; returns pytest's exit code."""
    url = dsn.replace("postgresql://postgres@", "postgresql+psycopg://postgres:any@")
    options = ("-p", "sqlalchemy_door", "--dburi", url, "--maxfail=100000", "-q")
    return _run(tests, door, dsn, records, log, [*options, *(labels or SQLALCHEMY)])


def run_psycopg(
    tests: Path, dsn: str, door: dict[str, str], records: Path, log: Path, labels: list[str]
) -> int:
    """Runs psycopg's tests at a server; returns pytest's exit code."""
    # Tests of leaks draw values, of which some cannot be dumped by any server.
    options = ("-p", "psycopg_door", "--test-dsn", dsn, "--timeout=600", "-k", "not leaks")
    return _run(tests, door, dsn, records, log, [*options, *(labels or PSYCOPG)])


def _run(
    tests: Path,
    door: dict[str, str],
    dsn: str,
    records: Path,
    log: Path,
    arguments: Sequence[str],
) -> int:
    environment = {
        **os.environ,
        **door,
        "PYTHONPATH": os.pathsep.join((str(INSIDE), str(tests.parent / "packages"))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FOREIGN_DSN": dsn,
        "FOREIGN_OUTCOMES": str(records),
    }
    # pytest-asyncio needs a setting of its own; psycopg's tests note in the cache that they began,
    # and do not begin again where they were ended.
    plugins = ("-p", "pytest_outcomes", "-p", "no:asyncio", "--cache-clear")
    command = [sys.executable, "-m", "pytest", *plugins, *arguments]
    with log.open("ab") as output:
        done = subprocess.run(
            command, cwd=tests, env=environment, stdout=output, stderr=output, check=False
        )
    return done.returncode
