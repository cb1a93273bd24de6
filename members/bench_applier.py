"""`groupcert bench applier`: one stream, every scheme, on each kind of target.

The rule it keeps: a rate counts only if the target's rows are those of serial execution. Without
workers no scheme is asked: that rate, the serial one, is measured once for each target, and all
others are compared to it.

On the `slow` target the bound is known: max(work / workers, critical path), where the work is
`slow_commit_ms` for each commit, and the critical path that for each of the longest chain.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from applier.source_stream import SourceOptions, final_rows, table_names
from applier.worker import check_workers
from certifier.errors import InvalidSetting
from members.bench_applier_run import LINES, SEED, Line, Run, measure, stream
from members.bench_applier_targets import BenchTarget, MariaDb, PostgreSql, RocksDb, Slow
from members.bench_mariadb_replica import MODES, MariaDbReplica
from members.convert import decode_changes
from members.database_servers import ServerMissing, mariadb_server, postgresql_server
from members.machine import machine

TARGETS = ("rocksdb", "postgresql", "mariadb", "slow")
SERIAL = "no workers"
_PACKAGES = ("psycopg", "PyMySQL", "rocksdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured.

    `schemes`: of `LINES` those with these names or labels, all for none. `targets`: some of
    `TARGETS`. `slow_transactions`: how many of the stream the slow target takes, as each keeps a
    worker for `slow_commit_ms`. `postgresql`, `mariadb`: where servers run; `start_servers` starts
    those that are not given. `mariadb_replica`: also measure MariaDB's own parallel replica.
    """

    transactions: int = 50_000
    workers: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    schemes: tuple[str, ...] = ()
    targets: tuple[str, ...] = TARGETS
    repeat: int = 3
    slow_commit_ms: float = 5.0
    slow_transactions: int = 2_000
    postgresql: str | None = None
    mariadb: str | None = None
    start_servers: bool = False
    mariadb_replica: bool = False

    def __post_init__(self) -> None:
        for workers in self.workers:
            check_workers(workers)
        names = {name for line in LINES for name in (line.scheme, line.label)}
        for setting, values, known in (
            ("scheme", self.schemes, sorted(names)),
            ("target", self.targets, TARGETS),
        ):
            for value in values:
                if value not in known:
                    expected = f"one of {', '.join(known)}"
                    raise InvalidSetting(name=setting, value=value, expected=expected)
        for target, address in (("postgresql", self.postgresql), ("mariadb", self.mariadb)):
            if target in self.targets and not (address or self.start_servers):
                expected = f"--{target} with its address, --start-servers, or other targets"
                raise InvalidSetting(name="target", value=target, expected=expected)

    @property
    def lines(self) -> tuple[Line, ...]:
        """The chosen lines."""
        chosen = self.schemes
        return tuple(
            line for line in LINES if not chosen or line.scheme in chosen or line.label in chosen
        )

    def plan(self) -> list[tuple[str, Line, int]]:
        """What is measured on each target, and its label: serial execution first."""
        counts = sorted(set(self.workers))
        serial = [(SERIAL, LINES[0], 0)] if 0 in counts else []
        return serial + [
            (line.label, line, workers) for line in self.lines for workers in counts if workers
        ]

    def replica_plan(self) -> list[tuple[str, str, int]]:
        """The same of MariaDB's own replica, with its modes."""
        if not self.mariadb_replica:
            return []
        counts = sorted(set(self.workers))
        serial = [(SERIAL, MODES[0], 0)] if 0 in counts else []
        return serial + [(mode, mode, workers) for mode in MODES for workers in counts if workers]


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


def parse_counts(text: str) -> tuple[int, ...]:
    """Numbers of workers from a list with commas.

    Raises:
        InvalidSetting: it is no such list.

    >>> parse_counts("8,0")
    (8, 0)
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        expected = "numbers with commas, such as 0,1,2,4,8,16"
        raise InvalidSetting(name="workers", value=text, expected=expected)
    return tuple(map(int, words))


def main(options: BenchOptions, *, as_json: bool, output: Path | None) -> int:
    """Measures, and prints one JSON document or tables; returns 1 if rows were wrong."""
    started = time.monotonic()
    console = Console(stderr=True)
    results = []
    with ExitStack() as stack:
        bench = Bench(options, stack)
        note = stack.enter_context(_shown(console, bench.runs_total))
        for result in bench.results(note):
            results.append(result)
            console.print(_sentence(result), highlight=False, soft_wrap=True)
    document = {
        "benchmark": "applier",
        "machine": {
            **machine(),
            "servers": bench.versions,
            "clients": {name: version(name) for name in _PACKAGES},
        },
        "seed": SEED,
        "stream": asdict(bench.source),
        "options": asdict(options),
        "seconds": round(time.monotonic() - started, 1),
        "results": [asdict(result) for result in results],
    }
    if output:
        output.write_text(json.dumps(document, indent=1) + "\n")
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        for table in _tables(results):
            Console().print(table)
    return 0 if all(result.run.is_correct for result in results) else 1


class Bench:
    """The targets, which live as long as the stack that they are given, and the runs on them."""

    def __init__(self, options: BenchOptions, stack: ExitStack) -> None:
        self.options = options
        self.source = SourceOptions(transactions=options.transactions)
        self.versions: dict[str, str] = {}
        self._stack = stack
        self._tables = table_names(self.source)
        try:
            self._targets = [self._target(name) for name in dict.fromkeys(options.targets)]
            self._replica = self._mariadb_replica() if options.mariadb_replica else None
        except ServerMissing as error:
            raise InvalidSetting(name="start_servers", value=True, expected=str(error)) from None

    @property
    def runs_total(self) -> int:
        """How many runs there are."""
        options = self.options
        planned = len(self._targets) * len(options.plan()) + len(options.replica_plan())
        return planned * options.repeat

    def results(self, note: Callable[[str], None]) -> Iterator[Result]:
        """Measures one line after the other; `note` is told what is being measured."""
        entries = stream(self.source)
        repeat = range(self.options.repeat)
        for target in self._targets:
            mine = entries
            if target.name == "slow":
                mine = entries[: self.options.slow_transactions]
            expected = final_rows(mine, decode_changes)
            serial = None
            for label, line, workers in self.options.plan():
                runs = []
                for _ in repeat:
                    note(f"{target.name} {label} {workers}")
                    runs.append(measure(target, line, workers, mine, expected))
                result = _result(target.name, label, workers, len(mine), runs, serial)
                serial = serial if workers else result.rate_median
                yield result
        if self._replica:
            serial = None
            note("loading MariaDB's source")
            self._replica.load(entries)
            for label, mode, workers in self.options.replica_plan():
                runs = []
                for _ in repeat:
                    note(f"{self._replica.name} {label} {workers}")
                    runs.append(self._replica.measure(mode, workers))
                result = _result(self._replica.name, label, workers, len(entries), runs, serial)
                serial = serial if workers else result.rate_median
                yield result

    def _target(self, name: str) -> BenchTarget:
        options = self.options
        if name == "rocksdb":
            return RocksDb()
        if name == "slow":
            return Slow(options.slow_commit_ms)
        target: PostgreSql | MariaDb
        if name == "postgresql":
            if options.postgresql:
                target = PostgreSql(options.postgresql, self._tables)
            else:
                postgresql = self._stack.enter_context(postgresql_server(self._folder()))
                target = PostgreSql(postgresql.dsn, self._tables, postgresql.pid)
        elif options.mariadb:
            target = MariaDb(options.mariadb, self._tables)
        else:
            mariadb = self._stack.enter_context(mariadb_server(self._folder()))
            target = MariaDb(mariadb.url, self._tables, mariadb.pid)
        self.versions[name] = target.version()
        return target

    def _mariadb_replica(self) -> MariaDbReplica:
        replica = MariaDbReplica(self._folder(), self._tables, self.source.sessions)
        self._stack.enter_context(replica)
        self.versions[replica.name] = replica.version()
        return replica

    def _folder(self) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="groupcert-bench-")
        return Path(self._stack.enter_context(folder))


def _result(
    target: str,
    label: str,
    workers: int,
    transactions: int,
    runs: Sequence[Run],
    serial: float | None,
) -> Result:
    runs = sorted(runs, key=lambda run: run.transactions_per_second)
    rates = [run.transactions_per_second for run in runs]
    middle = median(rates)
    wrong = next((run for run in runs if not run.is_correct), None)
    return Result(
        target=target,
        scheme=label,
        workers=workers,
        transactions=transactions,
        rate_median=round(middle, 1),
        rate_min=rates[0],
        rate_max=rates[-1],
        ratio=round(middle / serial, 2) if serial else None,
        run=wrong or runs[len(runs) // 2],
    )


def _tables(results: Sequence[Result]) -> Iterator[Table]:
    """A table for each target: rates, their ratio to the serial one, and the share of the bound."""
    for target, of_target in groupby(results, key=lambda result: result.target):
        mine = list(of_target)
        counts = sorted({result.workers for result in mine})
        by_place = {(result.scheme, result.workers): result for result in mine}
        labels = list(dict.fromkeys(result.scheme for result in mine))
        title = f"{target}: {mine[0].transactions:,} transactions, /s at so many workers"
        table = Table("scheme", title=title, title_justify="left")
        for count in counts:
            table.add_column(str(count), justify="right")
        for label in labels:
            cells = (by_place.get((label, count)) for count in counts)
            table.add_row(label, *map(_cell, cells))
        yield table


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    if not result.run.is_correct:
        return "WRONG ROWS"
    text = f"{result.rate_median:,.0f}"
    if result.ratio is not None:
        text += f" ({result.ratio:.2f}x)"
    if result.run.bound_share is not None:
        text += f" {result.run.bound_share:.0%}"
    return text


def _sentence(result: Result) -> str:
    run = result.run
    parts = [
        f"{result.target}, {result.scheme}, {result.workers} workers: "
        f"{result.rate_median:,.0f}/s [{result.rate_min:,.0f}..{result.rate_max:,.0f}]"
    ]
    if result.ratio is not None:
        parts.append(f"{result.ratio:.2f} x serial")
    if run.commit_group_mean is not None:
        parts.append(f"commit groups of {run.commit_group_mean:.1f}")
    if run.retries:
        parts.append(f"{run.retries} retries")
    if run.client_cpu_us is not None:
        parts.append(f"client {run.client_cpu_us:.0f} us")
    if run.server_cpu_us is not None:
        parts.append(f"server {run.server_cpu_us:.0f} us")
    if run.bound_share is not None:
        parts.append(f"{run.bound_share:.0%} of the bound")
    if not run.is_correct:
        parts.append("WRONG ROWS")
    return ", ".join(parts)


@contextmanager
def _shown(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is being measured; drawn between runs only, as it takes time."""
    if not console.is_terminal:
        yield lambda text: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("starting", total=total)
        started = 0

        def note(text: str) -> None:
            nonlocal started
            progress.update(task, completed=min(started, total), description=text, refresh=True)
            started += 1

        yield note
