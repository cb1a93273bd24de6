"""`groupcert bench applier`: one stream, every scheme, on each kind of target.

The rule it keeps: a rate counts only if the target's rows are those of serial execution. Without
workers no scheme is asked: that rate, the serial one, is measured once for each target, and all
others are compared to it.

On the `slow` target the bound is known: max(work / workers, critical path), where the work is
`SLOW_COMMIT_MS` for each commit, and the critical path that for each of the longest chain.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TypeVar

import typer
from rich.console import Console
from rich.table import Table

from groupcert.applier.engine.worker import check_workers
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.members.benchmarks.applier_run import LINES, SEED, MakeScheme, Run, measure, stream
from groupcert.members.benchmarks.applier_targets import (
    BenchTarget,
    MariaDb,
    PostgreSql,
    RocksDb,
    Slow,
)
from groupcert.members.benchmarks.machine import answer, machine
from groupcert.members.benchmarks.mariadb_replica import MODES, MariaDbReplica
from groupcert.members.benchmarks.source_stream import SourceOptions, final_rows, table_names
from groupcert.members.errors.usage import InvalidOption
from groupcert.members.host.database_servers import PREPARING, mariadb_server, postgresql_server
from groupcert.members.host.interruption import Course
from groupcert.members.wire.row_changes import decode_changes

EMBEDDED, SERVERS = ("rocksdb", "slow"), ("postgresql", "mariadb")
SERIAL = "no workers"
SLOW_COMMIT_MS = 5.0
SLOW_TRANSACTIONS = 2_000
"""How many of the stream the slow target takes: each keeps a worker for `SLOW_COMMIT_MS`."""
Choice = TypeVar("Choice")
"""What makes a scheme, or a mode of MariaDB's replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured.

    `schemes`: of `LINES` those with these labels, or of these schemes; all for none. `targets`: of
    `EMBEDDED`, and with `start_servers` of `SERVERS`; all for none. `mariadb_replica`: also measure
    MariaDB's own parallel replica.
    """

    transactions: int = 50_000
    workers: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    schemes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    repeat: int = 3
    start_servers: bool = False
    mariadb_replica: bool = False

    def __post_init__(self) -> None:
        for workers in self.workers:
            check_workers(workers)
        schemes = (*LINES, *{label.partition(" ")[0] for label in LINES})
        for name, values, known, more in (
            ("scheme", self.schemes, schemes, ""),
            ("target", self.targets, self.measurable, "; servers need --start-servers"),
        ):
            for value in values:
                if value not in known:
                    expected = f"one of {', '.join(sorted(known))}{more}"
                    raise InvalidOption(name=f"--{name}", value=value, expected=expected)

    @property
    def measurable(self) -> tuple[str, ...]:
        """The targets that can be measured."""
        return (*EMBEDDED, *SERVERS) if self.start_servers else EMBEDDED

    @property
    def lines(self) -> dict[str, MakeScheme]:
        """The chosen lines."""
        names = self.schemes or tuple(LINES)
        return {
            label: make
            for label, make in LINES.items()
            if label in names or label.partition(" ")[0] in names
        }

    def plan(self, choices: Mapping[str, Choice]) -> list[tuple[str, Choice, int]]:
        """Returns what is measured on a target, with its label: serial execution first."""
        counts = sorted(set(self.workers))
        plan = [(SERIAL, choice, 0) for choice in choices.values() if 0 in counts][:1]
        return plan + [
            (label, choice, workers)
            for label, choice in choices.items()
            for workers in counts
            if workers
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The runs of one line on one target, with one number of workers.

    Rates are in transactions per second. `ratio`: of the median to the serial rate of its target.
    `run`: the one with the median rate, or one that was wrong.
    """

    target: str
    scheme: str
    workers: int
    transactions: int
    rate_median: float
    rate_min: float
    rate_max: float
    ratio: float | None
    run: Run

    def __str__(self) -> str:
        if not self.run.is_correct:
            return "WRONG ROWS"
        ratio = "" if self.ratio is None else f" ({self.ratio:.2f}x)"
        share = "" if self.run.bound_share is None else f" {self.run.bound_share:.0%}"
        return f"{self.rate_median:,.0f}{ratio}{share}"


def parse_counts(text: str) -> tuple[int, ...]:
    """Numbers of workers from a list with commas.

    Raises:
        InvalidOption: it is no such list.

    >>> parse_counts("8,0")
    (8, 0)
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        expected = "numbers with commas, such as 0,1,2,4,8,16"
        raise InvalidOption(name="--workers", value=text, expected=expected)
    return tuple(map(int, words))


def main(options: BenchOptions, *, as_json: bool, output: Path | None) -> int:
    """Measures, and prints one JSON document or tables; returns 1 if rows were wrong."""
    source = SourceOptions(transactions=options.transactions)
    results = []
    versions: dict[str, str] = {}
    with Course(_names(options)) as course, ExitStack() as stack:
        tables = table_names(source)
        names = options.targets or options.measurable
        targets = {name: _target(name, tables, stack) for name in dict.fromkeys(names)}
        versions |= {name: targets[name].version() for name in SERVERS if name in targets}
        replica = None
        if options.mariadb_replica:
            replica = MariaDbReplica(_folder(stack), tables, source.sessions)
            versions[replica.name] = stack.enter_context(replica).version()
        measured = _measured(options, stream(source), targets, replica)
        for name, result in zip(course, measured, strict=True):
            results.append(result)
            typer.echo(f"{name}: {result}", err=True)
    document = {
        "benchmark": "applier",
        "machine": {**machine(), "servers": versions},
        "seed": SEED,
        "stream": asdict(source),
        "options": asdict(options),
        "results": [asdict(result) for result in results],
        **course.document(),
    }
    if not answer(document, as_json=as_json, output=output):
        for table in _tables(results):
            Console().print(table)
        typer.echo(course.text(), nl=False)
    return course.exit_code(0) if all(result.run.is_correct for result in results) else 1


def _names(options: BenchOptions) -> Iterator[str]:
    """Yields the names of what `_measured` measures."""
    choices: dict[str, Mapping[str, object]] = {
        name: options.lines for name in dict.fromkeys(options.targets or options.measurable)
    }
    if options.mariadb_replica:
        choices[MariaDbReplica.name] = dict.fromkeys(MODES)
    for target, of_target in choices.items():
        for label, _, workers in options.plan(of_target):
            yield f"{target}, {label}, {workers} workers"


def _target(name: str, tables: Sequence[str], stack: ExitStack) -> BenchTarget:
    """Returns a target; its server ends with the stack."""
    if name == "rocksdb":
        return RocksDb()
    if name == "slow":
        return Slow(SLOW_COMMIT_MS)
    if name == "postgresql":
        postgresql = stack.enter_context(postgresql_server(_folder(stack), PREPARING))
        return PostgreSql(postgresql.dsn, tables, postgresql.pid)
    mariadb = stack.enter_context(mariadb_server(_folder(stack)))
    return MariaDb(mariadb.url, tables, mariadb.pid)


def _folder(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="groupcert-bench-")))


def _measured(
    options: BenchOptions,
    entries: Sequence[RelayEntry],
    targets: Mapping[str, BenchTarget],
    replica: MariaDbReplica | None,
) -> Iterator[Result]:
    """Measures one line after the other."""
    for name, target in targets.items():
        mine = entries[:SLOW_TRANSACTIONS] if name == "slow" else entries
        expected = final_rows(mine, decode_changes)
        measured = partial(measure, target, entries=mine, expected=expected)
        yield from _results(name, options, options.lines, measured, len(mine))
    if replica:
        replica.load(entries)
        modes = dict(zip(MODES, MODES, strict=True))
        yield from _results(replica.name, options, modes, replica.measure, len(entries))


def _results(
    target: str,
    options: BenchOptions,
    choices: Mapping[str, Choice],
    measured: Callable[[Choice, int], Run],
    transactions: int,
) -> Iterator[Result]:
    """Yields the results of all choices on one target."""
    serial = None
    for label, choice, workers in options.plan(choices):
        runs = [measured(choice, workers) for _ in range(options.repeat)]
        runs.sort(key=lambda run: run.transactions_per_second)
        rates = [run.transactions_per_second for run in runs]
        middle = round(median(rates), 1)
        wrong = next((run for run in runs if not run.is_correct), None)
        serial = serial if workers else middle
        yield Result(
            target=target,
            scheme=label,
            workers=workers,
            transactions=transactions,
            rate_median=middle,
            rate_min=rates[0],
            rate_max=rates[-1],
            ratio=round(middle / serial, 2) if serial and workers else None,
            run=wrong or runs[len(runs) // 2],
        )


def _tables(results: Sequence[Result]) -> Iterator[Table]:
    """Returns a table for each target: rates, their ratio to the serial one, the share of the
    bound.
    """
    for target, of_target in groupby(results, key=lambda result: result.target):
        mine = list(of_target)
        counts = sorted({result.workers for result in mine})
        cells = {(result.scheme, result.workers): str(result) for result in mine}
        title = f"{target}: {mine[0].transactions:,} transactions, /s at so many workers"
        table = Table("scheme", title=title, title_justify="left")
        for count in counts:
            table.add_column(str(count), justify="right")
        for label in dict.fromkeys(result.scheme for result in mine):
            table.add_row(label, *(cells.get((label, count), "") for count in counts))
        yield table
