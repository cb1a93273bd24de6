"""`groupcert bench postgresql`: a commit at a PostgreSQL server of a group, beside the same server
alone and a Galera Cluster.

One row a transaction, by UPDATE and by INSERT, at one of three servers that share this machine with
their members and the log. All systems take their turns in each round; medians of the rounds count.
Two last loads are at all three servers: one shows how far they are behind; the other, of 20
transactions a second at each, how long these take while the first server copies 100,000 rows in.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import psutil
import psycopg
import typer

from groupcert.members.benchmarks.clients import VALUE_BYTES, Load
from groupcert.members.benchmarks.galera import galera_cluster, run_clients
from groupcert.members.benchmarks.machine import answer, machine
from groupcert.members.benchmarks.pgbench import SCHEMA, PgBench
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.demo.postgresql_servers import Primary
from groupcert.members.host.database_servers import MariaDbServer
from groupcert.members.host.interruption import Course

CLIENTS = (1, 8, 32)
STATEMENTS = ("update", "insert")
GROUP = "group"
PLAIN = "plain"
"""Also the name of its database."""
WRITE = "UPDATE item SET value = '' WHERE id = 0"
LAG_PERIOD_SECONDS = 0.1
SETTLE_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
COPIED_ROWS = 100_000
COPY_SECONDS = 20
COPY_RATE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgreSqlBench:
    """How long each load lasts, in seconds, and how often the systems take their turns."""

    seconds: int = 3
    rounds: int = 3
    galera: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """One load. `first_ms`: the median of the sessions' first transactions. `cpu_us`: processor
    time of all servers, members and companions for each commit.
    """

    commits_per_second: float
    avg_ms: float
    p50_ms: float
    p99_ms: float
    retried: int
    first_ms: float
    cpu_us: float


System = Callable[[str, int], Numbers]
"""Runs a statement, from a number of clients."""
Loads = dict[str, dict[str, dict[str, float]]]
"""By statement and clients, then by system: medians by name, and what the group adds to it."""


def main(bench: PostgreSqlBench, *, as_json: bool, output: Path | None) -> int:
    """Runs all loads and prints what came out.

    Raises:
        ServerMissing: PostgreSQL or Galera is not installed.
        UnsuitableTarget: PL/Python is not.
    """
    rounds: dict[str, list[dict[str, Numbers]]] = {}
    three: list[dict[str, float]] = []
    copied: list[dict[str, float]] = []
    with (
        Course(_parts(bench), lambda part: part.name) as course,
        tempfile.TemporaryDirectory(prefix="groupcert-bench-") as name,
        ExitStack() as stack,
    ):
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL runs as another user if this one is root.
        group = stack.enter_context(_started(folder / "postgresql"))
        systems = _systems(group, folder, bench)
        if bench.galera:
            nodes = stack.enter_context(galera_cluster(folder / "galera"))
            systems["galera"] = partial(_at_galera, nodes, bench)
        for part in course:
            if part.clients:
                measured = {
                    system: run(part.statement, part.clients) for system, run in systems.items()
                }
                rounds.setdefault(part.load, []).append(measured)
            else:
                three.append(_at_three_servers(group, folder, bench))
                copied.append(_while_copying(group, folder))
    loads = {load: _medians(turns) for load, turns in rounds.items()}
    document = {
        "machine": machine(),
        "seconds": bench.seconds,
        "rounds": bench.rounds,
        "loads": loads,
        "at_three_servers": three,
        "while_copying": copied,
        **course.document(),
    }
    if not answer(document, as_json=as_json, output=output):
        typer.echo(_table(loads))
        for found in three:
            typer.echo("at three servers: " + ", ".join(f"{k} {v}" for k, v in found.items()))
        for found in copied:
            typer.echo("while copying: " + ", ".join(f"{k} {v}" for k, v in found.items()))
        typer.echo(course.text(), nl=False)
    return course.exit_code(0)


class _Part(NamedTuple):
    """A load of one round; without clients, the one at all three servers."""

    round: int
    statement: str = ""
    clients: int = 0

    @property
    def load(self) -> str:
        """The name under which rounds of the same load are put together."""
        return f"{self.statement}, {self.clients} clients" if self.clients else "at three servers"

    @property
    def name(self) -> str:
        """The load and its round."""
        return f"{self.load}, round {self.round}"


def _parts(bench: PostgreSqlBench) -> Iterator[_Part]:
    numbers = range(1, bench.rounds + 1)
    yield from (_Part(*each) for each in product(numbers, STATEMENTS, CLIENTS))
    yield from map(_Part, numbers)


@dataclass(frozen=True, slots=True)
class _Group:
    """Members, and their servers. The first server has a second database, which is not attached:
    plain PostgreSQL, in the same process with the same settings.
    """

    group: LocalGroup
    primaries: Sequence[Primary]

    def pids(self) -> list[int]:
        """Returns the processes that a commit goes through."""
        members = [process.pid for process in self.group.processes.values()]
        servers = [primary.server.pid for primary in self.primaries]
        companions = [each.companion.pid for each in self.primaries if each.companion]
        return [self.group.log_server.pid, *members, *servers, *companions]

    def lag(self) -> int:
        """Returns how many versions the last server is behind what the first member certified."""
        newest = self.group.status(self.group.names[0]).observer.certified_version
        return max(0, newest - min(primary.version() for primary in self.primaries))

    def settle(self) -> None:
        """Returns when all servers have everything."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while self.lag():
            assert time.monotonic() < deadline, "a server does not catch up"
            time.sleep(POLL_SECONDS)


@contextmanager
def _started(folder: Path) -> Iterator[_Group]:
    with ExitStack() as stack:
        (folder / "group").mkdir(parents=True)
        group = stack.enter_context(LocalGroup(folder / "group"))
        primaries = [Primary(name, at, folder) for name, at in group.addresses.items()]
        for primary in primaries:
            primary.start_server()
            stack.callback(primary.stop_server)
            with psycopg.connect(primary.dsn, autocommit=True) as session:
                session.execute(f"CREATE DATABASE {PLAIN}".encode())
            with psycopg.connect(primary.server.dsn_of(PLAIN)) as session:
                session.execute(SCHEMA.encode())
            primary.attach(SCHEMA)
            primary.start_companion()
            stack.callback(primary.stop_companion)
        for primary in primaries:
            primary.wait_until_it_commits(WRITE)
        yield _Group(group, primaries)


def _systems(group: _Group, folder: Path, bench: PostgreSqlBench) -> dict[str, System]:
    first = group.primaries[0]
    plain = first.server.dsn_of(PLAIN)

    def system(dsn: str, processes: Sequence[int], synchronous_commit: str = "on") -> System:
        def run(statement: str, clients: int) -> Numbers:
            group.settle()
            load = PgBench(
                script=statement,
                clients=clients,
                seconds=bench.seconds,
                folder=folder,
                synchronous_commit=synchronous_commit,
            ).run([dsn], partial(_cpu_s, processes))
            return _numbers(load.load, load.seconds, load.first_ms, load.cpu_s)

        return run

    return {
        PLAIN: system(plain, [first.server.pid]),
        f"{PLAIN}, synchronous_commit off": system(plain, [first.server.pid], "off"),
        GROUP: system(first.dsn, group.pids()),
    }


def _at_galera(
    nodes: Sequence[MariaDbServer], bench: PostgreSqlBench, statement: str, clients: int
) -> Numbers:
    processes = [node.pid for node in nodes]
    spent_s = _cpu_s(processes)
    load = run_clients(nodes[:1], clients, bench.seconds, statement)
    return _numbers(load, bench.seconds, [0.0], _cpu_s(processes) - spent_s)


def _at_three_servers(group: _Group, folder: Path, bench: PostgreSqlBench) -> dict[str, float]:
    """Returns the numbers of 30 clients at all servers, and how far these were behind: the largest
    number of versions meanwhile, and the seconds until all had everything.
    """
    group.settle()
    lags, has_ended = [0], threading.Event()

    def watch() -> None:
        while not has_ended.wait(LAG_PERIOD_SECONDS):
            lags.append(group.lag())

    thread = threading.Thread(target=watch)
    thread.start()
    load = PgBench(script="update", clients=30, seconds=bench.seconds, folder=folder).run(
        [primary.dsn for primary in group.primaries], partial(_cpu_s, group.pids())
    )
    has_ended.set()
    thread.join()
    began = time.monotonic()
    group.settle()
    settled_s = time.monotonic() - began
    numbers = _numbers(load.load, load.seconds, load.first_ms, load.cpu_s)
    return {**asdict(numbers), "lag_versions_max": max(lags), "settled_s": round(settled_s, 3)}


def _while_copying(group: _Group, folder: Path) -> dict[str, float]:
    """Returns how long transactions at all servers take while the first one copies rows in, and
    how long that takes: the rows, and its COMMIT.
    """
    group.settle()
    first = group.primaries[0]
    took: list[float] = []

    def copy() -> None:
        time.sleep(0.6 * COPY_SECONDS)
        with psycopg.connect(first.dsn) as session:
            ((number,),) = session.execute("SELECT coalesce(min(id), 0) FROM added").fetchall()
            began = time.monotonic()
            with session.cursor().copy("COPY added FROM STDIN") as rows:
                for before in range(1, COPIED_ROWS + 1):
                    rows.write_row((number - before, "x" * VALUE_BYTES))
            has_copied = time.monotonic()
            session.commit()
            took.extend((has_copied - began, time.monotonic() - has_copied))

    thread = threading.Thread(target=copy)
    thread.start()
    bench = PgBench(
        script="update", clients=24, seconds=COPY_SECONDS, folder=folder, rate=COPY_RATE
    )
    load = bench.run([primary.dsn for primary in group.primaries], lambda: 0.0).load
    thread.join()
    group.settle()
    others = {f"others_{name}_ms": taken for name, taken in load.latencies().items()}
    return {"copy_s": round(took[0], 3), "commit_s": round(took[1], 3), **others}


def _numbers(load: Load, seconds: float, first_ms: Sequence[float], cpu_s: float) -> Numbers:
    latencies = load.latencies()
    return Numbers(
        commits_per_second=round(load.certified / seconds, 1),
        avg_ms=round(statistics.fmean(load.latencies_ms), 3),
        p50_ms=latencies["p50"],
        p99_ms=latencies["p99"],
        retried=load.rejected,
        first_ms=round(statistics.median(first_ms), 1),
        cpu_us=round(cpu_s / load.certified * 1e6, 1),
    )


def _medians(rounds: Sequence[Mapping[str, Numbers]]) -> dict[str, dict[str, float]]:
    """Returns the medians of each system, and beside the group: the share of its rate that the
    group reaches, and the milliseconds that a commit takes longer, on average and in the median.
    """
    found: dict[str, dict[str, float]] = {}
    for system in rounds[0]:
        turns = [asdict(each[system]) for each in rounds]
        found[system] = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    for system in set(found) - {GROUP}:
        theirs = [each[system] for each in rounds]
        ours = [each[GROUP] for each in rounds]
        pairs = list(zip(ours, theirs, strict=True))
        shares = (our.commits_per_second / their.commits_per_second for our, their in pairs)
        found[system] |= {
            "group_rate_ratio": round(statistics.median(shares), 3),
            "group_longer_avg_ms": _middle(our.avg_ms - their.avg_ms for our, their in pairs),
            "group_longer_p50_ms": _middle(our.p50_ms - their.p50_ms for our, their in pairs),
        }
    return found


def _middle(values: Iterator[float]) -> float:
    return round(statistics.median(values), 3)


def _cpu_s(processes: Sequence[int]) -> float:
    """Returns the processor time of processes and of all below them, ended ones too."""
    return sum(map(_cpu_of_tree, map(psutil.Process, processes)))


def _cpu_of_tree(process: psutil.Process) -> float:
    """Returns that of one, read again if a process below it ended or began meanwhile: its time was
    counted twice, or not at all.
    """
    while True:
        children = process.children(recursive=True)
        with suppress(psutil.NoSuchProcess):
            spent = sum(sum(child.cpu_times()[:2]) for child in children)
            spent += sum(process.cpu_times()[:4])  # The last two are those of ended ones.
            if process.children(recursive=True) == children:
                return float(spent)


def _table(loads: Loads) -> str:
    lines = [
        f"{'':52} {'commits/s':>9} {'avg ms':>7} {'p50':>7} {'p99':>7} {'CPU us':>7}"
        f" {'group: x rate':>14} {'avg +ms':>8}"
    ]
    for load, systems in loads.items():
        for system, found in systems.items():
            line = f"{load + ', ' + system:52} {found['commits_per_second']:9,.0f}"
            line += "".join(f" {found[name]:7.2f}" for name in ("avg_ms", "p50_ms", "p99_ms"))
            line += f" {found['cpu_us']:7.0f}"
            if system != GROUP:
                line += f" {found['group_rate_ratio']:14.2f} {found['group_longer_avg_ms']:8.2f}"
            lines.append(line)
    return "\n".join(lines)
