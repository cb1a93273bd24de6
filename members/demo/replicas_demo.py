"""`groupcert demo --replicas`: replicas of a live MariaDB server, under several schemes.

Each replica, MariaDB's own among them, has the source's tables when the clients begin. While none
runs, clients commit as fast as they can; then one replica after the other executes that backlog,
alone, with all of the machine. At last all follow clients that pause; one of them is killed, and
started again. When the clients have stopped, rows and GTIDs are compared with the source's.

Lag is measured here, for all alike: the age of the oldest commit of the source that a replica has
not executed, or has not told of.
"""

import secrets
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..host.mariadb_server import MariaDbServer
from ..host.postgresql_server import PostgreSqlServer
from .demo_report import LiveTable, Row, demo_folder, report
from .followers import (
    ORIGIN,
    SOURCE_OPTIONS,
    WORKERS,
    Follower,
    OwnReplica,
    Rows,
    SchemeReplica,
    Source,
    at_mariadb,
    at_postgresql,
)
from .group_checks import SETTLE_SECONDS, SHOWN_MAX
from .load import TICK_MS
from .shop_clients import DATABASE, TABLES, ShopLoad

SCHEMES = ("logical-clock", "jobs --conflicts graph", "database")
"""Each on MariaDB, the first on PostgreSQL, too. `database` executes one database in order."""
KILLED = 1
"""The index of the replica that is killed."""
BURST = 0.5
"""The part of the load's time in which no replica runs, at most."""
BACKLOG = 3_000
"""Transactions that are enough of it: each replica takes a few seconds."""
KILLED_AT, STARTED_AT = 0.25, 0.5
"""When one is killed and started again, as parts of the rest."""
PAUSE_SECONDS = 0.05
"""Of each client after a transaction, while replicas follow: they share two cores with all."""
POLL_SECONDS = 0.05
CATCH_UP_SECONDS_MAX = 300.0
COLUMNS = ("scheme", "target", "transactions/s", "lag", "behind")


@dataclass(slots=True)
class Progress:
    """How far a replica is, and how it got there."""

    follower: Follower
    state: str = "waits"
    """Shown in place of its lag unless it follows."""
    executed: int = 0
    lag_s: float = 0.0
    lag_max_s: float = 0.0
    """While it followed the clients."""
    per_second: float = 0.0
    """While it executed the backlog."""
    shown: tuple[int, float] = 0, 0.0
    """Executed, and when, as the table had it last."""

    @property
    def name(self) -> str:
        """Of the replica, in texts."""
        return f"{self.follower.scheme} on {self.follower.database.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaResult:
    """A row of the summary, and of the output of `--json`."""

    scheme: str
    target: str
    transactions_per_second: float
    longest_lag_s: float
    executed: int
    rows_equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasSummary:
    """The output of `--json`."""

    mariadb: str
    """Version of the servers."""
    postgresql: str
    workers: int
    transactions: int
    """Of the clients."""
    backlog: int
    """Those of them that were committed while no replica ran."""
    gtid_executed: str
    killed: str
    killed_behind: int
    """How many transactions the replica lacked that was killed, when it was started again."""
    replicas: list[ReplicaResult]
    findings: list[str]


class SourceHistory:
    """The source's position over time.

    >>> history = SourceHistory()
    >>> for moment, position in ((0.0, 0), (1.0, 100), (2.0, 100)):
    ...     history.add(moment, position)
    >>> history.age(50, 2.0), history.age(100, 2.0)
    (1.5, 0.0)
    """

    def __init__(self) -> None:
        self._moments: list[float] = []
        self._positions: list[int] = []

    def add(self, moment: float, position: int) -> None:
        """Notes a position; moments ascend."""
        self._moments.append(moment)
        self._positions.append(position)

    def age(self, executed: int, now: float) -> float:
        """Returns the age in seconds of the oldest transaction after `executed`; 0 if there is
        none. Between two moments the source is taken to commit steadily.
        """
        after = bisect_left(self._positions, executed + 1)
        if after == len(self._positions):
            return 0.0
        if after == 0:
            return now - self._moments[0]
        began, ended = self._moments[after - 1], self._moments[after]
        first, last = self._positions[after - 1], self._positions[after]
        return now - began - (ended - began) * (executed - first) / (last - first)


class Watch:
    """Shows replicas while clients write and replicas execute."""

    def __init__(
        self,
        console: Console,
        source: Source,
        load: ShopLoad,
        followers: Sequence[Follower],
    ) -> None:
        """Counts the seconds from here."""
        self._view = LiveTable(console, COLUMNS, lambda: map(self._row, self.everyone))
        self.live = self._view.live
        self.everyone = [Progress(follower) for follower in followers]
        self.position = 0
        self._source = source
        self._load = load
        self._history = SourceHistory()
        self._began = time.monotonic()
        self._drawn = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """Prints what has happened, above the view."""
        self.live.console.print(f"{self.elapsed:5.1f} s  {text}")

    def look(self) -> None:
        """Asks the source and all replicas that run, and draws what they say if that is due.

        Raises:
            ReplicaEnded: One cannot go on.
        """
        self.position = self._source.position()
        self._history.add(self.elapsed, self.position)
        for each in self.everyone:
            if not each.state:
                each.executed = each.follower.executed() or each.executed
            each.lag_s = self._history.age(each.executed, self.elapsed)
        if self.elapsed - self._drawn > TICK_MS / 1000:
            self._drawn = self.elapsed
            self._view.draw(self._load.commits, self.elapsed)

    def until(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Looks until a time of the load, or once something is over."""
        while self.elapsed < seconds and not is_over():
            self.look()
            time.sleep(POLL_SECONDS)

    def follow(self, seconds: float) -> None:
        """Looks until a time of the load, and notes how far behind replicas are."""

        def note() -> bool:
            for each in self.everyone:
                each.lag_max_s = max(each.lag_max_s, each.lag_s)
            return False

        self.until(seconds, note)

    def catch_up(self, one: Progress) -> None:
        """Starts a replica, and measures how fast it executes the backlog."""
        one.follower.start()
        one.state, first = "", one.executed
        began = self.elapsed

        def is_over() -> bool:
            nonlocal began
            if one.executed == first:
                began = self.elapsed
            return one.executed >= self.position

        self.until(began + CATCH_UP_SECONDS_MAX, is_over)
        one.state = "rests"
        one.per_second = (one.executed - first) / max(self.elapsed - began, POLL_SECONDS)
        self.say(f"{one.name} has executed {one.per_second:,.0f} transactions/s")

    def _row(self, each: Progress) -> Row:
        executed, moment = each.shown
        rate = (each.executed - executed) / max(self.elapsed - moment, 0.001)
        each.shown = each.executed, self.elapsed
        lag = Text(each.state, "red") if each.state else Text(f"{each.lag_s:.1f} s")
        behind = max(0, self.position - each.executed)
        follower = each.follower
        return (follower.scheme, follower.database.kind, f"{rate:,.0f}", lag, f"{behind:,}")


def main(*, clients: int, seconds: float, as_json: bool) -> int:
    """Runs the demo; returns 1 if rows or GTIDs differ, and keeps the folder then.

    Raises:
        ServerMissing: MariaDB or PostgreSQL is not installed.
        ReplicaEnded: A replica cannot go on.
    """
    console = Console(stderr=True)
    with ExitStack() as stack:
        folder = stack.enter_context(demo_folder())
        password = secrets.token_hex(16)
        server = MariaDbServer(folder / "source", *SOURCE_OPTIONS, password=password)
        mariadb = MariaDbServer(folder / "target", "--server-id=2", password=password)
        postgresql = PostgreSqlServer(folder / "postgresql", password=password)
        console.print(f"starting two MariaDB servers and a PostgreSQL in {folder}")
        for each in (server, mariadb, postgresql):
            stack.enter_context(each)
        load = ShopLoad(server, clients)
        followers: list[Follower] = []
        for number, scheme in enumerate(SCHEMES, start=1):
            database = at_mariadb(mariadb, f"replica{number}")
            followers.append(SchemeReplica(scheme, database, server, folder))
        followers.append(SchemeReplica(SCHEMES[0], at_postgresql(postgresql), server, folder))
        followers.append(OwnReplica(mariadb, server, password))
        source = stack.enter_context(closing(Source(server)))
        for follower in followers:
            stack.callback(follower.close)
        console.print(f"{len(followers)} replicas copy the source's tables")
        with ThreadPoolExecutor(len(followers)) as pool:
            position = source.position()
            list(pool.map(lambda follower: follower.prepare(position), followers))
        summary = _run(console, source, load, followers, seconds)
    return report(
        console, asdict(summary), _shown(summary), summary.findings, folder, as_json=as_json
    )


def _run(
    console: Console,
    source: Source,
    load: ShopLoad,
    followers: Sequence[Follower],
    seconds: float,
) -> ReplicasSummary:
    """Runs the load, and the checks after it."""
    first = source.position()
    watch = Watch(console, source, load, followers)
    for each in watch.everyone:
        each.executed = first
    with watch.live:
        watch.say("clients commit as fast as they can; no replica runs")
        with load.running():
            watch.until(seconds * BURST, lambda: watch.position - first >= BACKLOG)
        watch.look()
        backlog = watch.position - first
        watch.say(f"clients pause; each replica executes the backlog of {backlog:,} transactions")
        for each in watch.everyone:
            watch.catch_up(each)
        for each in watch.everyone:
            each.state = ""
        watch.say("clients go on, and all replicas follow")
        with load.running(PAUSE_SECONDS):
            killed_behind = _kill_one(watch, watch.everyone[KILLED], seconds * (1 - BURST))
        watch.say("clients stopped; comparing rows")
        watch.look()
        deadline = watch.elapsed + SETTLE_SECONDS
        watch.until(deadline, lambda: all(e.executed >= watch.position for e in watch.everyone))
    findings: list[str] = []
    replicas = list(_results(source.server, watch, findings))
    ((mariadb,),) = source.server.query("SELECT version()")
    ((postgresql,),) = followers[len(SCHEMES)].database.query("SHOW server_version")
    return ReplicasSummary(
        mariadb=str(mariadb).partition("-")[0],
        postgresql=str(postgresql).partition(" ")[0],
        workers=WORKERS,
        transactions=watch.position - first,
        backlog=backlog,
        gtid_executed=f"{ORIGIN}:1-{watch.position}",
        killed=followers[KILLED].scheme,
        killed_behind=killed_behind,
        replicas=replicas,
        findings=findings,
    )


def _kill_one(watch: Watch, one: Progress, seconds: float) -> int:
    """Kills a replica while clients write, starts it again, and follows until the clients' end.
    Returns the transactions that it lacked then.
    """
    began, replica = watch.elapsed, one.follower
    assert isinstance(replica, SchemeReplica)
    watch.follow(began + seconds * KILLED_AT)
    replica.kill()
    one.state = "down"
    watch.say(f"killed the replica {replica.scheme} (SIGKILL)")
    watch.follow(began + seconds * STARTED_AT)
    behind = watch.position - one.executed
    replica.start()
    one.state = ""
    watch.say(f"started it again, {behind:,} transactions behind")
    watch.follow(began + seconds)
    return behind


def _results(server: MariaDbServer, watch: Watch, findings: list[str]) -> Iterator[ReplicaResult]:
    """Yields the results of the replicas, and notes what is wrong."""
    expected = {table: server.query(_all_rows(table), DATABASE) for table in TABLES}
    for each in watch.everyone:
        follower, name = each.follower, each.name
        if each.executed < watch.position:
            missing = watch.position - each.executed
            findings.append(f"{name}: {missing:,} transactions are not executed")
        differences = [
            text
            for table, rows in expected.items()
            for text in differing_rows(table, rows, follower.database.query(_all_rows(table)))
        ]
        findings += [f"{name}: {text}" for text in differences[:SHOWN_MAX]]
        yield ReplicaResult(
            scheme=follower.scheme,
            target=follower.database.kind,
            transactions_per_second=round(each.per_second, 1),
            longest_lag_s=round(each.lag_max_s, 2),
            executed=each.executed,
            rows_equal=not differences,
        )


def _all_rows(table: str) -> str:
    return f"SELECT * FROM {table}"


def differing_rows(table: str, expected: Rows, found: Rows) -> list[str]:
    """Returns the rows that differ between the source and a replica, in words.

    >>> differing_rows("t", [(1, "a"), (2, "b")], [(1, "a"), (2, "c")])
    ["t has the row (2, 'b') at the source only", "t has the row (2, 'c') at the replica only"]
    """
    sides = (("source", set(expected) - set(found)), ("replica", set(found) - set(expected)))
    return [
        f"{table} has the row {row} at the {place} only"
        for place, rows in sides
        for row in sorted(rows)
    ]


def _shown(summary: ReplicasSummary) -> Iterator[Table | str]:
    """Yields the summary's table, and what stands below it."""
    table = Table(title=f"replicas of MariaDB {summary.mariadb}, {summary.workers} workers each")
    for name in ("scheme", "target", "transactions/s", "longest lag", "rows equal"):
        table.add_column(name, justify="left" if name in ("scheme", "target") else "right")
    for each in summary.replicas:
        table.add_row(
            each.scheme,
            each.target,
            f"{each.transactions_per_second:,.0f}",
            f"{each.longest_lag_s:.1f} s",
            Text("yes", "green") if each.rows_equal else Text("NO", "bold red"),
        )
    yield table
    followed = summary.transactions - summary.backlog
    yield (
        f"transactions/s: of a backlog of {summary.backlog:,}, each alone. Lag: of all at once, by "
        f"{followed:,} more; meanwhile {summary.killed} was killed, and came back "
        f"{summary.killed_behind:,} transactions behind. PostgreSQL is {summary.postgresql}; the "
        f"GTIDs are {summary.gtid_executed}."
    )
