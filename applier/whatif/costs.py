"""The time that work takes on a replica: waiting, on a processor, and to commit.

A replica is bound by processors long before its workers are: the target's server needs one for each
statement, and the applier is one Python interpreter, whose threads take turns. Without that, eight
workers are drawn eight times as fast, and measured 2.3 times on PostgreSQL, 1.3 times on MariaDB.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...certifier.errors import InvalidSetting


class Demand(NamedTuple):
    """Microseconds of the applier's interpreter, of other processors, and of waiting."""

    applier_us: int
    server_us: int
    wait_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times that work takes on the replica, in microseconds.

    `execute_us` and `row_us`: the mean of a transaction, and of each of its rows, if the stream
    does not have its duration, which is then drawn. `spread_percent`: the standard deviation of
    drawn durations, in percent of their mean; None: that of the durations that the stream has, or
    `SPREAD_PERCENT`. `job_us`: of each job, whatever is merged in it. `table_us`: of each table but
    one that merged transactions write, because that is a statement. `newest_percent`: the
    execution of a job that first reads which versions of its rows are there, in percent of that
    of others.

    `commit_us`: the wait for the disk, of a group commit, beside the execution; of each of its
    jobs unless `syncs_together`. `commit_applier_us`, `commit_server_us`: of each of its jobs, on
    processors; if there are any, a job is visible when they are over.

    `applier_percent`, `server_percent`: of an execution, on processors; the rest is waiting.
    `cores`: processors, None for as many as are asked for. The applier uses one at a time, and
    `handover_us` more to go from one of its threads to one that waits for the interpreter.

    The defaults: a round trip on a local network, an indexed row, a write that a solid-state disk
    acknowledges.
    """

    execute_us: int = 100
    row_us: int = 20
    spread_percent: int | None = None
    job_us: int = 0
    table_us: int = 0
    newest_percent: int = 100
    commit_us: int = 500
    syncs_together: bool = True
    commit_applier_us: int = 0
    commit_server_us: int = 0
    applier_percent: int = 0
    server_percent: int = 0
    handover_us: int = 0
    cores: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and value < (name == "cores"):
                expected = "1 or more" if name == "cores" else "0 or more"
                raise InvalidSetting(name=name, value=value, expected=expected)
        assert self.applier_percent + self.server_percent <= 100, "more than there is"

    def execution_us(self, rows: int) -> int:
        """Returns the mean time that a transaction of `rows` rows takes until it can commit."""
        return self.execute_us + rows * self.row_us

    @property
    def commit_processors_us(self) -> int:
        """Time of processors to commit a job."""
        return self.commit_applier_us + self.commit_server_us

    @property
    def alone_us(self) -> int:
        """Time of a job that is committed alone, beside what its transactions take."""
        return self.job_us + self.commit_processors_us + self.commit_us

    @property
    def least_us(self) -> int:
        """Time that each job takes at least, beside what its transactions take: in a group whose
        jobs share a sync it may be visible before that.
        """
        is_early = self.syncs_together and self.commit_processors_us
        return self.alone_us - (self.commit_us if is_early else 0)

    def demand(self, time_us: int) -> Demand:
        """Returns the parts of an execution that takes so long by itself.

        >>> Costs(applier_percent=40, server_percent=35).demand(100)
        Demand(applier_us=40, server_us=35, wait_us=25)
        """
        applier_us = time_us * self.applier_percent // 100
        both_us = time_us * (self.applier_percent + self.server_percent) // 100
        return Demand(applier_us, both_us - applier_us, time_us - both_us)

    def processors_us(self, execution_us: int, jobs: int) -> int:
        """Returns the shortest time in which `jobs` jobs get what they need of the processors."""
        if self.cores is None:
            return 0
        time_us = execution_us + jobs * self.job_us
        percent = self.applier_percent + self.server_percent
        # The parts of each job are rounded down.
        applier_us = time_us * self.applier_percent // 100 + jobs * (self.commit_applier_us - 1)
        both_us = time_us * percent // 100 + jobs * (self.commit_processors_us - 1)
        return max(0, applier_us, both_us // self.cores)


LIKE: Mapping[str, Costs] = {
    "mariadb": Costs(
        job_us=292,
        table_us=76,
        execute_us=0,
        row_us=7,
        newest_percent=159,
        commit_us=28,
        syncs_together=False,
        commit_applier_us=56,
        commit_server_us=25,
        applier_percent=46,
        server_percent=42,
        handover_us=55,
        cores=2,
    ),
    "mariadb-replica": Costs(
        job_us=3,
        execute_us=0,
        row_us=4,
        commit_us=104,
        commit_server_us=35,
        server_percent=90,
        cores=2,
    ),
    "postgresql": Costs(
        job_us=206,
        table_us=76,
        execute_us=0,
        row_us=6,
        newest_percent=175,
        commit_us=84,
        commit_applier_us=40,
        commit_server_us=89,
        applier_percent=47,
        server_percent=49,
        handover_us=20,
        cores=2,
    ),
    "wait": Costs(job_us=5_100, execute_us=0, row_us=0, commit_us=0),
}
"""Costs of targets, chosen so that predictions come near to what `python -m tests.bench applier`
has measured on two cores. `mariadb-replica`: that server's own replica, without an applier. `wait`:
5 ms for each commit, as of a disk or a network that is slow.
"""


def costs_of(report: object) -> Costs:
    """Returns the costs in an earlier report of what-if, without what they were drawn by.

    Raises:
        InvalidSetting: it has none.
    """
    known = {name for name in Costs.__slots__ if name != "spread_percent"}
    workload = report.get("workload") if isinstance(report, dict) else None
    costs = workload.get("costs") if isinstance(workload, dict) else None
    found: dict[str, Any] = {}
    if isinstance(costs, dict):
        found = {name: costs.get(name) for name in known}
    if not found or not all(
        isinstance(value, int) or (name == "cores" and value is None)
        for name, value in found.items()
    ):
        expected = "one that has workload.costs, as --json prints it"
        raise InvalidSetting(name="report", value=str(report)[:40], expected=expected)
    return Costs(**found)


def costs_like(name: str | None) -> Costs:
    """Returns the costs of a target of `LIKE`, or the defaults for None.

    Raises:
        InvalidSetting: there is no such target.
    """
    if name is not None and name not in LIKE:
        raise InvalidSetting(name="like", value=name, expected=f"one of {', '.join(LIKE)}")
    return LIKE[name] if name else Costs()


def replaced(costs: Costs, **given: Any) -> Costs:
    """Returns costs with those that are given in place of their own.

    Raises:
        InvalidSetting: a cost is below its limit, or has no effect.
    """
    if (cores := given.get("cores")) and costs.cores is None:
        expected = (
            "--like mariadb, mariadb-replica or postgresql, or --measure: without it nothing "
            "needs a processor"
        )
        raise InvalidSetting(name="cores", value=cores, expected=expected)
    return replace(costs, **{key: value for key, value in given.items() if value is not None})
