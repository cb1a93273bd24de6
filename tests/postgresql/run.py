"""One run: a group of PostgreSQL servers, its clients, its kills, and what holds at the end."""

import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from groupcert.members.demo.postgresql_servers import Primary
from tests.integration.waiting import wait_for
from tests.postgresql import bank, isolation, lists
from tests.postgresql.group import Group, running_group
from tests.postgresql.history import write_history
from tests.postgresql.kills import Kills
from tests.postgresql.pgbench import Pgbench
from tests.postgresql.told import Answer
from tests.postgresql.workers import Workers

COMMITS_BETWEEN = 5
"""That clients of each kind make at each server between two kills."""
CLIENTS = {"bank": 1, "lists": 2}
"""At each server, beside those of pgbench."""
TABLES = ("branches", "tellers", "accounts", "history", "lists")
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
    with running_group(folder, bank.SCHEMA + lists.SCHEMA) as group:
        told: dict[uuid.UUID, Answer] = {}
        shared = lists.Lists()
        workers = {
            "bank": Workers(
                group.dsns, CLIENTS["bank"], lambda n, c: bank.BankClient(n, c, told), seed
            ),
            "lists": Workers(
                group.dsns, CLIENTS["lists"], lambda n, c: lists.ListClient(n, c, shared), seed + 1
            ),
        }
        pgbench = Pgbench(group.dsns, folder, seed)

        def wait_for_load(dsn: str) -> None:
            for each in workers.values():
                each.wait_for_commits(dsn, COMMITS_BETWEEN)

        kills = Kills(group, wait_for_load, seed)
        with ExitStack() as stack:
            stack.enter_context(pgbench.working())
            for each in workers.values():
                stack.enter_context(each.working())
            with kills.killing():
                _wait(seconds, lambda: progress(sum(kills.counts.values())))
            for dsn in group.dsns:
                wait_for_load(dsn)
        run.killed, run.longest = kills.counts, kills.longest
        run.told = {name: _counted(each) for name, each in workers.items()}
        run.pgbench = pgbench.processed
        _wait_until_equal(group)
        with closing(group.primaries[0].connect()) as session:
            run.problems += bank.find_problems(session, told, run.pgbench)
            found = isolation.check(shared.operations, lists.final_lists(session))
            ((run.committed,),) = session.execute("SELECT max(version) FROM groupcert.executed")
    run.problems += found.problems
    run.has_write_skew = found.has_write_skew
    if run.problems:
        write_history(folder / "history.jsonl", shared.operations)
    run.seconds = time.monotonic() - began
    return run


def _wait(seconds: float, progress: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(PROGRESS_SECONDS)
        progress()


def _counted(workers: Workers) -> Counter[str]:
    counts: Counter[str] = Counter()
    for answer, count in workers.told.items():
        counts[f"{answer.told} {answer.sqlstate}".rstrip()] += count
    return counts


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
