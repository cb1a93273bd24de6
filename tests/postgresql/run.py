"""One run: a group of PostgreSQL servers, its clients, its kills, and what holds at the end."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from groupcert.members.demo.postgresql_servers import Primary
from tests.integration.waiting import wait_for
from tests.laboratory import sql_clients
from tests.laboratory.append import has_write_skew
from tests.laboratory.check import check_history, first_of_each
from tests.laboratory.driver import WorkloadRun
from tests.laboratory.history import History
from tests.laboratory.plans import SNAPSHOT_WORKLOADS
from tests.laboratory.sql_clients import SqlSession, final_state
from tests.postgresql import bank
from tests.postgresql.group import Group, running_group
from tests.postgresql.kills import Kills
from tests.postgresql.pgbench import Pgbench

COMMITS_BETWEEN = 5
"""That clients of each kind make at each server between two kills."""
CLIENTS = 2
"""Of the workloads at each server, beside one of the bank and those of pgbench."""
TABLES = ("branches", "tellers", "accounts", "history", "workload")
PROGRESS_SECONDS = 0.5


@dataclass(slots=True)
class Run:
    """What a run has done and found."""

    seed: int
    killed: Counter[str] = field(default_factory=Counter)
    longest: dict[str, float] = field(default_factory=dict)
    told: dict[str, Counter[str]] = field(default_factory=dict)
    """Answers by the kind of clients."""
    pgbench: int = 0
    """Commits that pgbench was acknowledged."""
    committed: int = 0
    """Transactions that the group has certified."""
    has_write_skew: bool = False
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    folder: Path | None = None


def check(seed: int, seconds: float, progress: Callable[[int], None]) -> Run:
    """Returns a run under load for so many seconds; its folder is the caller's to remove.

    Args:
        progress: Is called with the number of kills, again and again.
    """
    folder = Path(tempfile.mkdtemp(prefix="groupcert-postgresql-"))
    run = Run(seed, folder=folder)
    began = time.monotonic()
    with running_group(folder, bank.SCHEMA + sql_clients.SCHEMA) as group:
        dsns = group.dsns
        clients = bank.BankClients(dsns, seed)
        workloads = WorkloadRun(
            lambda number, _: SqlSession(dsns[number % len(dsns)], dsns[number % len(dsns)]),
            seed=seed,
            workloads=SNAPSHOT_WORKLOADS,
            clients=CLIENTS * len(dsns),
        )
        pgbench = Pgbench(dsns, folder, seed)

        def wait_for_load(dsn: str) -> None:
            clients.wait_for_commits(COMMITS_BETWEEN, dsn)
            workloads.wait_for_commits(COMMITS_BETWEEN, dsn)

        kills = Kills(group, wait_for_load, seed)
        with pgbench, clients, workloads:
            with kills:
                _wait(seconds, lambda: progress(sum(kills.counts.values())))
            for dsn in dsns:
                wait_for_load(dsn)
        run.killed, run.longest = kills.counts, kills.longest
        run.told["bank"], run.told["workloads"] = clients.answers, _counted(workloads.history)
        run.pgbench = pgbench.processed
        _wait_until_equal(group)
        for primary in group.primaries:
            with closing(primary.connect()) as session:
                workloads.history.finals.append(final_state(primary.dsn, session))
        with closing(group.primaries[0].connect()) as session:
            run.problems += bank.find_problems(session, clients.told, run.pgbench)
            ((run.committed,),) = session.execute("SELECT max(version) FROM groupcert.executed")
    run.problems += first_of_each(check_history(workloads.history))
    run.has_write_skew = has_write_skew(workloads.history, SNAPSHOT_WORKLOADS[0])
    if run.problems:
        workloads.history.save(folder / "history.jsonl")
    run.seconds = time.monotonic() - began
    return run


def _wait(seconds: float, progress: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(PROGRESS_SECONDS)
        progress()


def _counted(history: History) -> Counter[str]:
    return Counter(f"{each.outcome} {each.cause}".rstrip() for each in history.operations)


def _wait_until_equal(group: Group) -> None:
    """Returns when all servers have the same rows and the same newest version."""

    def state(primary: Primary) -> list[object]:
        digests = (
            f"SELECT md5(coalesce(string_agg(t::text, '|' ORDER BY id), '')) FROM {table} t"
            for table in TABLES
        )
        return [
            *(primary.query(digest) for digest in digests),
            primary.query("SELECT max(version) FROM groupcert.executed"),
        ]

    def are_equal() -> bool:
        first, *others = (state(primary) for primary in group.primaries)
        return all(other == first for other in others)

    with ExitStack() as stack:
        for place in range(len(group.primaries)):
            stack.enter_context(group.explaining(place))
        wait_for("all servers have the same rows", are_equal)
