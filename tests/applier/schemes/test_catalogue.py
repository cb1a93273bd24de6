"""Schemes by the names that users give."""

from collections.abc import Callable

import pytest

from groupcert.applier.schemes import Consistency, Ordering
from groupcert.applier.schemes.by_database import ByDatabase
from groupcert.applier.schemes.by_table import ByTable
from groupcert.applier.schemes.catalogue import SCHEMES, scheme
from groupcert.applier.schemes.jobs import Conflicts, JobsOptions
from groupcert.applier.schemes.logical_clock import LogicalClock
from groupcert.certifier.errors import InvalidSetting


def test_every_name_makes_a_scheme_with_defaults_of_its_own() -> None:
    made = {name: scheme(name) for name in SCHEMES}
    for each in made.values():
        each.check_invariants()
        assert each.hold is None
    assert {name: each.ordering for name, each in made.items()} == {
        "logical-clock": Ordering.SOURCE,
        "commit-parent": Ordering.SOURCE,
        "database": Ordering.NONE,
        "group-commit": Ordering.DOMAIN,
        "table": Ordering.NONE,
        "jobs": Ordering.SOURCE,
        "rows": Ordering.SOURCE,
    }


@pytest.mark.parametrize("name", ["logical-clock", "commit-parent", "database", "jobs"])
def test_commit_order_can_be_chosen_where_a_scheme_can_do_both(name: str) -> None:
    ordered = scheme(name, preserve_commit_order=True)
    assert (ordered.ordering, ordered.consistency) == (Ordering.SOURCE, Consistency.ANY_TIME)
    assert scheme(name, preserve_commit_order=False).ordering is Ordering.NONE


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("writeset", {}, "one of logical-clock, commit-parent, database, group-commit, table"),
        ("rows", {"conflicts": "graph"}, "none with the scheme rows: jobs has it"),
        ("jobs", {"policy": "at-most-one"}, "none with the scheme jobs: logical-clock has"),
        ("jobs", {"conflicts": "none"}, "one of ignore, ordered, barrier, graph, merge"),
        ("logical-clock", {"policy": "fair"}, "one of at-most-one, first-available"),
        ("jobs", {"job_transactions_max": 8}, "none with the scheme jobs: logical-clock has it"),
        ("logical-clock", {"job_transactions_max": 0}, "1 or more"),
        ("table", {"preserve_commit_order": True}, "False with the scheme table"),
        ("rows", {"preserve_commit_order": False}, "True with the scheme rows"),
        ("group-commit", {"preserve_commit_order": False}, "True with the scheme group-commit"),
        (
            "jobs",
            {"conflicts": "ignore", "preserve_commit_order": True},
            "False with the scheme jobs --conflicts ignore",
        ),
    ],
)
def test_a_setting_that_a_scheme_does_not_have_is_an_error(
    name: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidSetting, match=message):
        scheme(name, **settings)  # type: ignore[arg-type]  # wrong settings are what is tested


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ByDatabase(databases_max=0), "databases_max is '0': expected 1 or more"),
        (lambda: ByDatabase(worker_queue_max=0), "worker_queue_max is '0': expected 1 or more"),
        (lambda: ByTable(worker_queue_max=0), "worker_queue_max is '0': expected 1 or more"),
        (lambda: LogicalClock(job_transactions_max=0), "job_transactions_max"),
        (lambda: LogicalClock(job_transactions_min=0), "job_transactions_min"),
        (
            lambda: LogicalClock(job_transactions_min=3, job_transactions_max=2),
            r"max \(2\) or less",
        ),
        (
            lambda: JobsOptions(conflicts=Conflicts.ORDERED, preserve_commit_order=False),
            "preserve_commit_order",
        ),
        (lambda: JobsOptions(conflict_free_min=1), "conflict_free_min is '1': expected 2 or more"),
        (lambda: JobsOptions(jobs_per_worker_max=0), "jobs_per_worker_max is '0': expected 1 or"),
        (lambda: JobsOptions(merge_transactions_max=0), "merge_transactions_max is '0': expected"),
        (lambda: JobsOptions(merge_bytes_max=0), "merge_bytes_max is '0': expected 1 or more"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        make()
