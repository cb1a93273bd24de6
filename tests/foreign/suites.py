"""Test suites of others: each is run at a server alone, then at one of a group of three."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import servers
from tests.foreign import django_suite
from tests.foreign.door import open_door
from tests.foreign.foreign_group import ForeignGroup, foreign_group
from tests.foreign.outcomes import failures, outcomes_of, read_records

ISOLATION = "default_transaction_isolation=repeatable read"


@dataclass(frozen=True)
class Suite:
    """Where its sources are, what it needs before, and how its tests run at a server."""

    find: Callable[[Path], Path | None]
    prepare: Callable[[ForeignGroup], None]
    run: Callable[[Path, str, dict[str, str], Path, Path, list[str]], int]
    advice: str


SUITES = {
    "django": Suite(
        django_suite.find_sources,
        django_suite.prepare,
        django_suite.run_suite,
        "the source distribution of Django, unpacked",
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
                    suite.run(tests, server.dsn, {}, alone, log, labels)
            records.unlink(missing_ok=True)
            with foreign_group(folder) as group:
                suite.prepare(group)
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
