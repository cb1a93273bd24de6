"""The shortest time of a run, by the jobs that it ran: an oracle for tests of all schemes.

It is not the bound of a report, which some schemes pass: who divides transactions, merges them, or
lets one overtake another that it follows.
"""

from groupcert.applier.whatif.dependencies import critical_path
from groupcert.applier.whatif.scheme_comparison import bounds
from groupcert.applier.whatif.simulation import Run
from groupcert.applier.whatif.workload import Workload


def bound_us(workload: Workload, run: Run) -> int:
    """The larger of its workers' time, what it needs of the processors, and the longest chain of
    transactions that it kept in order.

    A scheme that divides transactions keeps only the chains of single rows; one with a transaction
    that overtook one that it follows kept none; one that merges them commits a chain once.
    """
    costs, execution_us = workload.costs, sum(workload.durations_us)
    work_us = execution_us + run.jobs * costs.least_us
    if run.overtakers is None:
        chain_us = longest_row_us(workload)
    elif run.overtakers:
        chain_us = max(workload.durations_us)
    elif run.jobs < len(workload):
        chain_us = execution_path_us(workload)
    else:
        chain_us = bounds(workload).path.length_us
    return max(-(-work_us // run.workers), costs.processors_us(execution_us, run.jobs), chain_us)


def execution_path_us(workload: Workload) -> int:
    """The length of the critical path without commits."""
    return critical_path(workload.dependencies, workload.durations_us).length_us


def longest_row_us(workload: Workload) -> int:
    """The time of the busiest row's changes: no division of transactions shortens it."""
    busy_us: dict[int, int] = {}
    for number, duration_us in enumerate(workload.durations_us):
        items = workload.items(number)
        for item in items:
            busy_us[item] = busy_us.get(item, 0) + duration_us // len(items)
    return max(busy_us.values(), default=0)
