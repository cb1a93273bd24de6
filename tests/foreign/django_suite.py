"""Django's own tests of models, transactions and constraints, from the folder of its sources."""

import os
import subprocess
import sys
from pathlib import Path

APPS = (
    "basic",
    "bulk_create",
    "constraints",
    "custom_pk",
    "db_functions",
    "defer",
    "delete",
    "delete_regress",
    "expressions",
    "fixtures",
    "fixtures_model_package",
    "fixtures_regress",
    "force_insert_update",
    "foreign_object",
    "generic_relations",
    "get_or_create",
    "indexes",
    "lookup",
    "m2m_through",
    "many_to_many",
    "many_to_one",
    "model_fields",
    "model_inheritance",
    "one_to_one",
    "queries",
    "save_delete_hooks",
    "select_for_update",
    "serializers",
    "signals",
    "test_utils",
    "transaction_hooks",
    "transactions",
    "unmanaged_models",
    "update",
    "update_only_fields",
    "validation",
    "db_typecasts",
    "db_utils",
    "backends",
    "bulk_create",
    "or_lookups",
    "ordering",
    "raw_query",
    "select_related",
    "sites_tests",
    "string_lookup",
    "multiple_database",
    "composite_pk",
    "contenttypes_tests",
    "sessions_tests",
    "cache",
)
SETTINGS: dict[str, dict[str, str]] = {
    "django": {},
    "django-binding": {"FOREIGN_BINDING": "server"},
    "django-commits": {"FOREIGN_COMMITS": "1"},
}
"""By program: as it is, by the extended protocol, and with tests that commit (inside/)."""
INSIDE = Path(__file__).with_name("inside")


def find_sources(folder: Path) -> Path | None:
    """Returns the folder of Django's tests; None: it is not there."""
    return next(iter(sorted(folder.glob("[dD]jango-*/tests"))), None)


def run_suite(
    setting: dict[str, str],
    tests: Path,
    dsn: str,
    door: dict[str, str],
    records: Path,
    log: Path,
    labels: list[str],
) -> int:
    """Runs the tests at a server; returns the exit code of their runner.

    Args:
        setting: What is different from how Django runs them.
        door: What leads to the group; empty: there is none.
        records: Gets a line of JSON for each test.
    """
    known = [app for app in dict.fromkeys(APPS) if (tests / app).is_dir()]
    path = os.pathsep.join((str(INSIDE), str(tests.parents[1] / "packages")))
    environment = {
        **os.environ,
        **setting,
        **door,
        "PYTHONPATH": path,
        "FOREIGN_DSN": dsn,
        "FOREIGN_OUTCOMES": str(records),
    }
    command = [
        sys.executable,
        "-W",
        "ignore",
        "runtests.py",
        "--settings=django_settings",
        "--parallel=1",
        "--noinput",
        *(labels or known),
    ]
    with log.open("ab") as output:
        done = subprocess.run(
            command, cwd=tests, env=environment, stdout=output, stderr=output, check=False
        )
    return done.returncode
