"""One stream of transactions under every scheme, on each kind of target.

The rule it keeps: a rate counts only if the target's rows are those of serial execution. Without
workers no scheme is asked: that rate, the serial one, is measured once for each target, and all
others are compared to it. The clock runs from the first transaction that is handed over until the
last one is visible; it stands still while the target is made and read back.

On the `slow` target the bound is known: max(work / workers, critical path), where the work is
`SLOW_COMMIT_MS` for each commit, and the critical path that for each of the longest chain.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from groupcert.applier.engine.applier import Applier, ApplierOptions, ApplierState
from groupcert.applier.engine.coordinator import CoordinatorOptions
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes import Scheme
from groupcert.applier.schemes.catalogue import scheme
from groupcert.applier.schemes.jobs import Conflicts
from groupcert.members.errors.usage import InvalidOption
from groupcert.members.replica.follower import CHUNK_TRANSACTIONS, WAKE_SECONDS
from groupcert.members.replica.replica_process import sql_logical_clock
from tests.bench.harness import Document, Load, Run, in_turns, machine, scratch
from tests.bench.mariadb_replica import MODES, MariaDbReplica, mariadb_replica
from tests.bench.source_stream import (
    SourceOptions,
    final_rows,
    longest_chain,
    source_stream,
    table_names,
)
from tests.bench.targets import (
    BenchTarget,
    SlowTarget,
    mariadb_database,
    postgresql_database,
    rates,
    rocksdb,
    slow,
)
from tests.servers import PREPARING, MariaDbServer, PostgreSqlServer

SEED = 1
SERVERS = ("postgresql", "mariadb")
REPLICA = "mariadb replica"
TARGETS = ("rocksdb", "slow", *SERVERS, REPLICA)
SERIAL = "no workers"
SLOW_COMMIT_MS = 5.0
SLOW_TRANSACTIONS = 2_000
"""How many of the stream the slow target takes: each keeps a worker for `SLOW_COMMIT_MS`."""
QUEUE_TRANSACTIONS_MAX = CoordinatorOptions().assigned_transactions_max
QUEUE_BYTES_MAX = 64 << 20
STOP_SECONDS_MAX = 60

MakeScheme = Callable[[], Scheme]
LINES: dict[str, MakeScheme] = {
    "logical-clock at-most-one": partial(scheme, "logical-clock", policy="at-most-one"),
    "logical-clock first-available": partial(scheme, "logical-clock", policy="first-available"),
    "logical-clock as on SQL servers": sql_logical_clock,
    **{name: partial(scheme, name) for name in ("commit-parent", "group-commit")},
    **{name: partial(scheme, name) for name in ("database", "table")},
    **{f"jobs {each.value}": partial(scheme, "jobs", conflicts=each.value) for each in Conflicts},
    "rows": partial(scheme, "rows"),
}
"""Schemes with their settings, by their names in results."""


class Line(NamedTuple):
    """One line of the results. `label`: of `LINES`, of `MODES`, or `SERIAL`."""

    target: str
    label: str
    workers: int

    def __str__(self) -> str:
        return f"{self.target}, {self.label}, {self.workers} workers"


class Setup(NamedTuple):
    """What lines are measured on; the replica has fetched the stream."""

    entries: Sequence[RelayEntry]
    targets: Mapping[str, BenchTarget]
    replica: MariaDbReplica | None


def applier(
    run: Run,
    schemes: tuple[str, ...] = (),
    targets: tuple[str, ...] = ("rocksdb", "slow"),
    workers: tuple[int, ...] = (0, 1, 2, 4, 8, 16),
    transactions: int = 50_000,
    repeat: int = 3,
) -> Document:
    """Executes one stream under every scheme, on each target.

    Exits with 1 if rows are not those of serial execution.

    Args:
        schemes: Only these, or with their settings, as "jobs graph"; none: all.
        targets: Of rocksdb, slow, postgresql, mariadb, and "mariadb replica", which is MariaDB's
            own; servers are started on loopback.
        workers: Numbers of them; 0: serial execution.
        transactions: Of one row each.
        repeat: Turns, of which the median counts.
    """
    source = SourceOptions(transactions=transactions)
    lines = lines_of(schemes, targets, workers)
    versions: dict[str, str] = {}
    loads = [Load(str(line), partial(_measured, line)) for line in lines]
    results = run.measure(in_turns(loads, repeat), _opened(source, targets, versions))
    measured = {line: results[str(line)] for line in lines if str(line) in results}
    for line, runs in measured.items():
        right = all(each["is_correct"] for each in runs)
        run.check(right, f"{line}: rows are not those of serial execution")
    serial = {
        line.target: _median_rate(runs) for line, runs in measured.items() if not line.workers
    }
    return {
        "benchmark": "applier",
        "machine": {**machine(), "servers": versions},
        "seed": SEED,
        "stream": asdict(source),
        "options": {
            "transactions": transactions,
            "workers": workers,
            "schemes": schemes,
            "targets": [each for each in targets if each != REPLICA],
            "repeat": repeat,
            "start_servers": bool({*SERVERS} & {*targets}),
            "mariadb_replica": REPLICA in targets,
        },
        "results": [
            _result(line, runs, transactions, serial.get(line.target))
            for line, runs in measured.items()
        ],
    }


def lines_of(schemes: Sequence[str], targets: Sequence[str], workers: Sequence[int]) -> list[Line]:
    """Returns what is measured: on each target serial execution first.

    Raises:
        InvalidOption: A scheme or a target is not known.
    """
    known = (*LINES, *{label.partition(" ")[0] for label in LINES})
    for name, values, expected in (("schemes", schemes, known), ("targets", targets, TARGETS)):
        for value in values:
            if value not in expected:
                text = f"one of {', '.join(sorted(expected))}"
                raise InvalidOption(name=f"--{name}", value=value, expected=text)
    chosen = [
        label
        for label in LINES
        if not schemes or label in schemes or label.partition(" ")[0] in schemes
    ]
    counts = sorted(set(workers))
    return [
        Line(target, label, count)
        for target in dict.fromkeys(targets)
        for label in (SERIAL, *(MODES if target == REPLICA else chosen))
        for count in counts
        if (label == SERIAL) == (count == 0)
    ]


@contextmanager
def _opened(
    source: SourceOptions, names: Sequence[str], versions: dict[str, str]
) -> Iterator[Setup]:
    """Starts the servers of targets, and fills in their versions."""
    entries, tables = source_stream(source, SEED), table_names(source)
    with scratch() as folder, ExitStack() as stack:
        targets: dict[str, BenchTarget] = {"rocksdb": rocksdb(), "slow": slow(SLOW_COMMIT_MS)}
        if "postgresql" in names:
            server = stack.enter_context(PostgreSqlServer(folder / "postgresql", PREPARING))
            targets["postgresql"] = postgresql_database(server, tables)
        if "mariadb" in names:
            mariadb = stack.enter_context(MariaDbServer(folder / "mariadb"))
            targets["mariadb"] = mariadb_database(mariadb, tables)
        versions |= {name: target.version for name, target in targets.items() if target.version}
        replica = None
        if REPLICA in names:
            started = mariadb_replica(folder, entries, tables, source.sessions)
            replica = stack.enter_context(started)
            versions[REPLICA] = replica.version
        yield Setup(entries, targets, replica)


def _measured(line: Line, setup: Setup) -> Document:
    if line.target == REPLICA:
        assert setup.replica, "it was started"
        mode = MODES[0] if line.label == SERIAL else line.label
        return setup.replica.measure(mode, line.workers)
    entries = setup.entries[: SLOW_TRANSACTIONS if line.target == "slow" else None]
    make_scheme = LINES.get(line.label) or next(iter(LINES.values()))
    return measure(setup.targets[line.target], make_scheme, line.workers, entries)


def measure(
    target: BenchTarget, make_scheme: MakeScheme, workers: int, entries: Sequence[RelayEntry]
) -> Document:
    """Applies the entries to a new target.

    Returns:
        `is_correct`: the rows are those of serial execution. `client_cpu_us`, `server_cpu_us`:
        processor time in microseconds a transaction. `parallelism_mean`: workers that executed
        when a transaction was handed over. `bound_share`: of the slow target, the least time that
        the bound allows over the time it took.

    Raises:
        GroupcertError: One of them cannot be executed.
    """
    together_max = CoordinatorOptions().group_transactions_max
    limits = CoordinatorOptions(
        group_transactions_max=together_max if workers else target.alone_transactions_max
    )
    errors: list[Exception] = []
    with target.opened(workers) as opened:
        applier: Applier[Any] = Applier(
            opened.target,
            make_scheme(),
            workers,
            on_committed=lambda version, position: None,
            on_error=errors.append,
            options=ApplierOptions(coordinator=limits),
        )
        clock = target.clock()
        try:
            _apply(applier, entries)
            spent = clock.spent()
        finally:
            applier.stop(STOP_SECONDS_MAX)
        if errors:
            raise errors[0]
        status = applier.status()
        is_correct = opened.rows() == final_rows(entries)
    share = None
    if isinstance(opened.target, SlowTarget):
        share = round(_bound_seconds(opened.target, workers, entries) / spent[0], 3)
    return {
        **rates(spent, len(entries)),
        "is_correct": is_correct,
        "commit_group_mean": round(status.committed_total / max(status.groups_total, 1), 2),
        "retries": sum(worker.retried_total for worker in status.workers),
        "parallelism_mean": round(status.parallelism_mean, 2),
        "bound_share": share,
    }


def _apply(applier: Applier[Any], entries: Sequence[RelayEntry]) -> None:
    """Feeds the entries as a replica does, and waits until they are visible, or one failed."""
    for start in range(0, len(entries), CHUNK_TRANSACTIONS):
        while not applier.wait_for_room(QUEUE_TRANSACTIONS_MAX, QUEUE_BYTES_MAX, WAKE_SECONDS):
            if applier.status().state is not ApplierState.RUNNING:
                return
        applier.append(entries[start : start + CHUNK_TRANSACTIONS])
    applier.drain()


def _bound_seconds(target: SlowTarget, workers: int, entries: Sequence[RelayEntry]) -> float:
    """Returns max(work / workers, critical path); merged transactions are one commit, no chain."""
    commits = target.commits_total / max(workers, 1)
    chain = longest_chain(entries) if target.commits_total >= len(entries) else 0
    return max(commits, chain) * target.commit_seconds


def _result(line: Line, runs: list[Document], transactions: int, serial: float | None) -> Document:
    """Returns a line's rates, and their ratio to the serial one. `run`: the one with the median
    rate, or one that was wrong.
    """
    runs = sorted(runs, key=lambda run: run["transactions_per_second"])
    wrong = next((run for run in runs if not run["is_correct"]), None)
    middle = _median_rate(runs)
    return {
        "target": line.target,
        "scheme": line.label,
        "workers": line.workers,
        "transactions": min(transactions, SLOW_TRANSACTIONS)
        if line.target == "slow"
        else transactions,
        "rate_median": middle,
        "rate_min": runs[0]["transactions_per_second"],
        "rate_max": runs[-1]["transactions_per_second"],
        "ratio": round(middle / serial, 2) if serial and line.workers else None,
        "run": wrong or runs[len(runs) // 2],
    }


def _median_rate(runs: Sequence[Document]) -> float:
    rates: list[float] = [run["transactions_per_second"] for run in runs]
    return round(statistics.median(rates), 1)
