"""Costs of a target that was measured: from times of jobs and commits to the model's parts.

What an applier takes beside its target, to hand over, to wait for and to wake threads, is in the
rate of one worker; what its threads take from each other, in the rate of several: the model's
handover is such that it predicts this rate.
"""

from math import sqrt
from typing import NamedTuple

from ...certifier.gtid import Gtid
from ...certifier.write_set import item_from_text
from ..source.header import SourceHeader
from .costs import Costs, replaced
from .scheme_comparison import Line, run_line
from .workload import Work, load

MANY = 32
GROUP = 8
HANDOVER_US_MAX = 1_023
_FITTED_TRANSACTIONS = 256
_SOURCE = "00000000-0000-0000-0000-000000000001"


class Spent(NamedTuple):
    """Microseconds: all of them, and those of the applier's processor and of the server's."""

    all_us: float
    applier_us: float
    server_us: float

    @property
    def wait_us(self) -> float:
        """The rest: waiting for the disk, the network, or a processor that another has."""
        return max(0.0, self.all_us - self.applier_us - self.server_us)


class Measured(NamedTuple):
    """The times of a target.

    Executions of jobs: `one` of one row, `many` of `MANY` rows of a table, `tables` of as many in
    two tables, `newest` of one row by a job that reads versions first. Commits: `alone` of one job,
    `group` of `GROUP` jobs together. Transactions of one row, executed and committed by an applier:
    `serial` with one worker, `crowded` with `GROUP`.
    """

    one: Spent
    many: Spent
    tables: Spent
    newest: Spent
    alone: Spent
    group: Spent
    serial: Spent
    crowded: Spent


def measured_costs(measured: Measured, cores: int) -> Costs:
    """Returns the costs of a target that shares `cores` processors with its applier."""
    one, alone, group = measured.one, measured.alone, measured.group
    # Of the applier's rate only its processors count: who else uses these makes it wait longer.
    applier_us = max(one.applier_us, measured.serial.applier_us - alone.applier_us)
    server_us = max(one.server_us, measured.serial.server_us - alone.server_us)
    job = Spent(applier_us + server_us + one.wait_us, applier_us, server_us)
    row_us = max(0, round((measured.many.all_us - one.all_us) / (MANY - 1)))
    applier_percent = min(100, round(100 * job.applier_us / job.all_us))
    server_percent = min(100 - applier_percent, round(100 * job.server_us / job.all_us))
    # One wait for all, or one for each: what is nearer, in parts of it.
    together = group.wait_us < alone.wait_us * sqrt(GROUP)
    costs = Costs(
        job_us=max(0, round(job.all_us) - row_us),
        table_us=max(0, round(measured.tables.all_us - measured.many.all_us)),
        execute_us=0,
        row_us=row_us,
        newest_percent=100
        + max(0, round(100 * (measured.newest.all_us - one.all_us) / job.all_us)),
        commit_us=round(group.wait_us if together else group.wait_us / GROUP),
        syncs_together=together,
        commit_applier_us=round(group.applier_us / GROUP),
        commit_server_us=round(group.server_us / GROUP),
        applier_percent=applier_percent,
        server_percent=server_percent,
        cores=cores,
    )
    return replaced(costs, handover_us=_handover_us(costs, measured.crowded.all_us))


def _handover_us(costs: Costs, crowded_us: float) -> int:
    """Returns the handover with which a transaction takes so long on average, with `GROUP` workers;
    the closest one within the limits.
    """
    low, high = 0, HANDOVER_US_MAX
    while low < high:
        middle = (low + high) // 2
        if _crowded_us(replaced(costs, handover_us=middle)) < crowded_us:
            low = middle + 1
        else:
            high = middle
    return low


def _crowded_us(costs: Costs) -> float:
    """Returns the predicted time of a transaction that follows no other, with `GROUP` workers."""
    works = (
        Work(
            Gtid(_SOURCE, number),
            last_committed=1,
            sequence_number=number + 1,
            header=SourceHeader(items=(item_from_text(f"d.t/{number}"),)),
            keys=(f"d.t/{number}",),
            rows=1,
        )
        for number in range(1, _FITTED_TRANSACTIONS + 1)
    )
    run = run_line([load(works, costs)], Line("logical-clock"), GROUP)
    return run.makespan_us / _FITTED_TRANSACTIONS
