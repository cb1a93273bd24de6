"""Runs of the simulated group, one after the other or on several processes.

The rule it keeps: what a run says depends on its arguments alone, in whatever process it runs.
"""

import logging
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import structlog

from tests.laboratory.check import check_history, report
from tests.laboratory.summary import Summary, summary_of
from tests.sim.checkers import Checks, ClientsAlone, Violation
from tests.sim.clients import final_states
from tests.sim.cluster import Cluster
from tests.sim.mutants import installed

STEPS = 1_000
CHUNK_SEEDS = 20
"""Seeds that a process is given at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to run, but for the seed."""

    steps: int = STEPS
    scenario: str | None = None
    mutant: str | None = None
    clients_alone: bool = False
    without_rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run was. `failure` is empty where all is well."""

    text: str
    failure: str
    acknowledged: int = 0
    operations: int = 0
    unknown: int = 0
    lost: int = 0
    faults: int = 0
    stall_ms: int = 0


def run_seed(run: Run, seed: int) -> Result:
    """Runs one seed, and checks what came of it; what its members log is not told."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with installed(run.mutant):
        checks = ClientsAlone() if run.clients_alone else Checks()
        cluster = Cluster(seed, run.scenario, checks, run.without_rows)
        try:
            cluster.run(run.steps)
            summary = _check_workloads(cluster)
        except Exception as error:
            return Result(text="", failure=_failure(cluster, error, run))
    reached = ", ".join(f"{name} {count}" for name, count in cluster.reached.items() if count)
    text = (
        f"seed {seed}, {cluster.scenario}: faults {len(summary.faults)}, "
        f"operations {summary.operations}, acknowledged {summary.acknowledged}, "
        f"unknown {summary.unknown}, lost {cluster.lost}, longest stall {summary.stall_ms} ms"
    )
    return Result(
        text=f"{text} ({reached})" if reached else text,
        failure="",
        acknowledged=summary.acknowledged,
        operations=summary.operations,
        unknown=summary.unknown,
        lost=cluster.lost,
        faults=len(summary.faults),
        stall_ms=summary.stall_ms,
    )


def run_seeds(run: Run, seeds: Sequence[int], jobs: int) -> Iterator[Result]:
    """Runs seeds, on several processes if there shall be more than one: begun anew, since one that
    was forked from a process with threads may never end.
    """
    if jobs == 1:
        yield from map(partial(run_seed, run), seeds)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(partial(run_seed, run), seeds, chunksize=CHUNK_SEEDS)


def _check_workloads(cluster: Cluster) -> Summary:
    """What the clients' own checkers find, and the run in numbers."""
    history = cluster.history
    if cluster.is_tail_lost:
        return summary_of(history, ())
    history.finals = final_states(list(cluster.members.values()))
    findings = check_history(history)
    if findings:
        raise Violation(report(history, findings))
    return summary_of(history, findings)


def _failure(cluster: Cluster, error: Exception, run: Run) -> str:
    """What happened last, what was found, and how to see it again."""
    replay = f"python -m tests.sim --seed={cluster.history.seed} --steps={run.steps}"
    for name, value in (("scenario", run.scenario), ("mutant", run.mutant)):
        replay += f" --{name}={value}" if value else ""
    replay += " --clients-alone" if run.clients_alone else ""
    replay += "".join(f" --without-rows={name}" for name in run.without_rows)
    return "\n".join(
        [
            f"The last events of a run of the scenario {cluster.scenario}:",
            *cluster.trace,
            "".join(traceback.format_exception(error)) + f"FAILED; replay with: {replay}\n",
        ]
    )
