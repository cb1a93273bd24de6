"""The catalogue: schemes by the names and settings that users give.

A setting that a scheme does not have is an error, never ignored; a setting that is not given has
the scheme's own default.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from ...certifier.errors import InvalidSetting
from . import Scheme
from .by_database import ByDatabase
from .by_rows import ByRows
from .by_table import ByTable
from .commit_parent import CommitParent
from .group_commit import GroupCommit
from .jobs import Conflicts, Jobs, JobsOptions
from .logical_clock import LogicalClock, Policy

Setting = TypeVar("Setting", bound=Enum)


def scheme(
    name: str,
    *,
    conflicts: str | None = None,
    policy: str | None = None,
    job_transactions_max: int | None = None,
    job_transactions_min: int = 1,
    preserve_commit_order: bool | None = None,
) -> Scheme:
    """Returns a new scheme.

    `conflicts`: of `jobs`; one of the values of `Conflicts`. `policy`: of `logical-clock`; one of
    the values of `Policy`. `job_transactions_max`: of `logical-clock`; transactions that may start
    together and follow each other are executed and committed as one, up to so many.
    `job_transactions_min`: so many are executed as one before a further worker gets any.

    Raises:
        InvalidSetting: there is no such scheme, it has no such setting, or not with this value.

    >>> scheme("commit-parent").ordering.value
    'source'
    """
    if name not in _SCHEMES:
        raise InvalidSetting(name="scheme", value=name, expected=f"one of {', '.join(SCHEMES)}")
    for setting, value, owner in (
        ("conflicts", conflicts, "jobs"),
        ("policy", policy, "logical-clock"),
        ("job_transactions_max", job_transactions_max, "logical-clock"),
    ):
        if value is not None and name != owner:
            expected = f"none with the scheme {name}: {owner} has it"
            raise InvalidSetting(name=setting, value=value, expected=expected)
    order = f"jobs --conflicts {conflicts}" if name == "jobs" else name
    if order in _ORDERS and preserve_commit_order not in (None, _ORDERS[order]):
        expected = f"{_ORDERS[order]} with the scheme {order}"
        raise InvalidSetting(
            name="preserve_commit_order", value=preserve_commit_order, expected=expected
        )
    chosen = _Settings(
        _chosen("conflicts", conflicts, Conflicts.GRAPH),
        _chosen("policy", policy, Policy.AT_MOST_ONE),
        1 if job_transactions_max is None else job_transactions_max,
        job_transactions_min,
        preserve_commit_order,
    )
    return _SCHEMES[name](chosen)


class _Settings(NamedTuple):
    conflicts: Conflicts
    policy: Policy
    job_transactions_max: int
    job_transactions_min: int
    preserve_commit_order: bool | None

    def ordered(self, default: bool) -> bool:
        """Returns `preserve_commit_order`, or `default`, for a scheme that supports both values."""
        return default if self.preserve_commit_order is None else self.preserve_commit_order


def _chosen(name: str, value: str | None, default: Setting) -> Setting:
    """Returns the value of an enum that a text names."""
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
        job_transactions_min=settings.job_transactions_min,
        preserve_commit_order=settings.ordered(True),
    )


def _jobs(settings: _Settings) -> Scheme:
    ordered = settings.ordered(True)
    return Jobs(JobsOptions(conflicts=settings.conflicts, preserve_commit_order=ordered))


_SCHEMES: Mapping[str, Callable[[_Settings], Scheme]] = {
    "logical-clock": _logical_clock,
    "commit-parent": lambda chosen: CommitParent(preserve_commit_order=chosen.ordered(True)),
    "database": lambda chosen: ByDatabase(preserve_commit_order=chosen.ordered(False)),
    "group-commit": lambda _: GroupCommit(),
    "table": lambda _: ByTable(),
    "jobs": _jobs,
    "rows": lambda _: ByRows(),
}
_ORDERS = {"group-commit": True, "table": False, "rows": True, "jobs --conflicts ignore": False}
"""Whether schemes that cannot be told to commit in the source's order do."""
SCHEMES = tuple(_SCHEMES)
"""The names of all schemes."""
