"""The catalogue: schemes by the names and settings that users give.

The rule it keeps: a setting that a scheme does not have is an error, never ignored; one that is not
given has the scheme's own default.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from applier.schemes import Scheme
from applier.schemes.commit_parent import CommitParent
from applier.schemes.database import Database
from applier.schemes.group_commit import GroupCommit
from applier.schemes.jobs import Conflicts, Jobs, JobsOptions
from applier.schemes.logical_clock import LogicalClock, Policy
from applier.schemes.rows import Rows
from applier.schemes.table import Table
from certifier.errors import InvalidSetting

Setting = TypeVar("Setting", bound=Enum)


def scheme(
    name: str,
    *,
    conflicts: str | None = None,
    policy: str | None = None,
    job_transactions_max: int | None = None,
    preserve_commit_order: bool | None = None,
) -> Scheme:
    """Returns a new scheme.

    `conflicts`: of `jobs`; one of the values of `Conflicts`. `policy`: of `logical-clock`; one of
    the values of `Policy`. `job_transactions_max`: of `logical-clock`; transactions that may start
    together and follow each other are executed and committed as one, up to so many.

    Raises:
        InvalidSetting: there is no such scheme, it has no such setting, or not with this value.

    >>> scheme("commit-parent").ordering.value
    'source'
    """
    if name not in _SCHEMES:
        raise InvalidSetting(name="scheme", value=name, expected=f"one of {', '.join(SCHEMES)}")
    if conflicts is not None and name != "jobs":
        raise InvalidSetting(
            name="conflicts", value=conflicts, expected=f"none with the scheme {name}: jobs has it"
        )
    if policy is not None and name != "logical-clock":
        raise InvalidSetting(
            name="policy", value=policy, expected=f"none with the scheme {name}: logical-clock has"
        )
    if job_transactions_max is not None and name != "logical-clock":
        raise InvalidSetting(
            name="job_transactions_max",
            value=job_transactions_max,
            expected=f"none with the scheme {name}: logical-clock has it, and jobs merge by itself",
        )
    chosen = _Settings(
        _chosen("conflicts", conflicts, Conflicts.GRAPH),
        _chosen("policy", policy, Policy.AT_MOST_ONE),
        1 if job_transactions_max is None else job_transactions_max,
        preserve_commit_order,
    )
    return _SCHEMES[name](chosen)


class _Settings(NamedTuple):
    conflicts: Conflicts
    policy: Policy
    job_transactions_max: int
    preserve_commit_order: bool | None

    def ordered(self, default: bool) -> bool:
        """`preserve_commit_order` of a scheme that can do both."""
        return default if self.preserve_commit_order is None else self.preserve_commit_order

    def check_order(self, name: str, is_ordered: bool) -> None:
        """`preserve_commit_order` of a scheme that can do one of both only."""
        if self.preserve_commit_order not in (None, is_ordered):
            raise InvalidSetting(
                name="preserve_commit_order",
                value=self.preserve_commit_order,
                expected=f"{is_ordered} with the scheme {name}",
            )


def _chosen(name: str, value: str | None, default: Setting) -> Setting:
    """The value of an enum that a text names."""
    if value is None:
        return default
    for known in type(default):
        if known.value == value:
            return known
    names = ", ".join(known.value for known in type(default))
    raise InvalidSetting(name=name, value=value, expected=f"one of {names}")


def _logical_clock(settings: _Settings) -> Scheme:
    return LogicalClock(
        settings.policy,
        job_transactions_max=settings.job_transactions_max,
        preserve_commit_order=settings.ordered(True),
    )


def _commit_parent(settings: _Settings) -> Scheme:
    return CommitParent(preserve_commit_order=settings.ordered(True))


def _database(settings: _Settings) -> Scheme:
    return Database(preserve_commit_order=settings.ordered(False))


def _group_commit(settings: _Settings) -> Scheme:
    settings.check_order("group-commit", True)
    return GroupCommit()


def _table(settings: _Settings) -> Scheme:
    settings.check_order("table", False)
    return Table()


def _jobs(settings: _Settings) -> Scheme:
    conflicts = settings.conflicts
    if conflicts is Conflicts.IGNORE:
        settings.check_order("jobs --conflicts ignore", False)
    ordered = settings.ordered(True)
    return Jobs(JobsOptions(conflicts=conflicts, preserve_commit_order=ordered))


def _rows(settings: _Settings) -> Scheme:
    settings.check_order("rows", True)
    return Rows()


_SCHEMES: Mapping[str, Callable[[_Settings], Scheme]] = {
    "logical-clock": _logical_clock,
    "commit-parent": _commit_parent,
    "database": _database,
    "group-commit": _group_commit,
    "table": _table,
    "jobs": _jobs,
    "rows": _rows,
}
SCHEMES = tuple(_SCHEMES)
"""The names of all schemes."""
