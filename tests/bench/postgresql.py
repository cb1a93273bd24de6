"""A commit at a PostgreSQL server of a group, beside the same server alone and a Galera Cluster.

One row a transaction, by UPDATE and by INSERT, at one of three servers that share this machine with
their members and the log, and at all three. All systems take their turns in each round; medians of
the rounds count. The last load, of 20 transactions a second at each server, shows how long these
take while the first server copies 100,000 rows in. PostgreSQL's clients are `pgbench`, Galera's are
threads of Python.
"""

import bisect
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import psycopg

from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.demo.postgresql_servers import GroupAtServers, Primary
from tests.bench.clients import VALUE_BYTES
from tests.bench.galera import galera_cluster, run_clients
from tests.bench.harness import (
    Clock,
    Document,
    Load,
    Run,
    in_turns,
    machine,
    medians,
    scratch,
)
from tests.bench.pgbench import SCHEMA, Numbers, numbers_of, pgbench
from tests.integration.waiting import wait_for
from tests.log_servers import NatsServers
from tests.servers import MariaDbServer

CLIENTS = (1, 8, 32)
STATEMENTS = ("update", "insert")
GROUP, PLAIN, GALERA = "group", "plain", "galera"
"""The systems; the second is also the name of its database."""
WITHOUT_SYNC = f"{PLAIN}, synchronous_commit off"
WRITE = "UPDATE item SET value = '' WHERE id = 0"
CLIENTS_AT_THREE = 24
LAG_PERIOD_SECONDS = 0.01
COPIED_ROWS = 100_000
COPY_SECONDS = 20
COPY_RATE = 20


def postgresql(
    run: Run, seconds: int = 3, rounds: int = 3, galera: bool = True, log_servers: int = 1
) -> Document:
    """Commits at a PostgreSQL server of a group, at the same server alone, and at Galera.

    Needs PostgreSQL with pgbench and PL/Python, and for `galera` MariaDB with Galera.

    Args:
        seconds: How long each load runs.
        rounds: Turns, of which the median counts.
        galera: Also at a Galera Cluster.
        log_servers: 1, or 3, of which two have each message on disk before it counts.
    """
    loads = [
        Load(f"{statement}, {clients} clients", partial(_at_all, statement, clients))
        for statement, clients in product(STATEMENTS, CLIENTS)
    ]
    loads.append(Load(f"update, {CLIENTS_AT_THREE} clients at three servers", _at_three_servers))
    copying = Load("while copying", _while_copying)
    plan = [*in_turns(loads, rounds), *in_turns([copying], rounds)]
    results = run.measure(plan, _systems(seconds, galera, log_servers))
    return {
        "machine": machine(),
        "seconds": seconds,
        "rounds": rounds,
        "log_servers": log_servers,
        "loads": {
            load.name: _compared(results[load.name]) for load in loads if load.name in results
        },
        "while_copying": results.get(copying.name, []),
    }


@dataclass(frozen=True, slots=True)
class _Systems:
    """Members, their servers, and the nodes of Galera. The first server has a second database,
    which is not attached: plain PostgreSQL, in the same process with the same settings.
    """

    seconds: int
    logs: Sequence[int]
    group: LocalGroup
    primaries: Sequence[Primary]
    nodes: Sequence[MariaDbServer]

    @property
    def databases(self) -> list[str]:
        """Where clients of the group connect."""
        return [primary.dsn for primary in self.primaries]

    def pids(self) -> list[int]:
        """Returns the processes that a commit goes through."""
        members = [process.pid for process in self.group.processes.values()]
        servers = [primary.server.pid for primary in self.primaries]
        return [*self.logs, *members, *servers]

    def settle(self) -> None:
        """Returns when all servers have everything."""
        newest = self.group.status(self.group.names[0]).observer.certified_version
        wait_for(
            "a server catches up",
            lambda: all(primary.version() >= newest for primary in self.primaries),
        )


@contextmanager
def _systems(seconds: int, galera: bool, log_servers: int) -> Iterator[_Systems]:
    with scratch() as folder, ExitStack() as stack:
        three = stack.enter_context(NatsServers(folder)) if log_servers > 1 else None
        primaries = [Primary(name, folder / "servers") for name in ("m1", "m2", "m3")]
        for primary in primaries:
            stack.enter_context(primary.server)
            with psycopg.connect(primary.dsn, autocommit=True) as session:
                session.execute(f"CREATE DATABASE {PLAIN}".encode())
            with psycopg.connect(primary.server.dsn_of(PLAIN)) as session:
                session.execute(SCHEMA.encode())
            primary.attach(SCHEMA)
        settings = three.settings if three else {}
        group = GroupAtServers(primaries, folder / "group", settings=settings)
        stack.enter_context(group)
        nodes = stack.enter_context(galera_cluster(folder / "galera")) if galera else ()
        logs = three.processes.values() if three else [group.log_server]
        yield _Systems(seconds, [log.pid for log in logs], group, primaries, nodes)


def _at_all(statement: str, clients: int, systems: _Systems) -> dict[str, Numbers]:
    """Returns the numbers of each system."""
    seconds, server = systems.seconds, systems.primaries[0].server
    plain = ([server.dsn_of(PLAIN)], [server.pid], "on")
    found = {}
    for system, (databases, pids, synchronous_commit) in {
        PLAIN: plain,
        WITHOUT_SYNC: (*plain[:2], "off"),
        GROUP: ([server.dsn], systems.pids(), "on"),
    }.items():
        systems.settle()
        _, found[system] = pgbench(
            statement,
            databases,
            pids,
            clients=clients,
            seconds=seconds,
            synchronous_commit=synchronous_commit,
        )
    return found | _at_galera(systems, systems.nodes[:1], clients, statement)


def _at_galera(
    systems: _Systems, nodes: Sequence[MariaDbServer], clients: int, statement: str
) -> dict[str, Numbers]:
    """Returns the numbers of clients at some nodes of Galera, if there are nodes."""
    if not nodes:
        return {}
    clock = Clock(nodes=[node.pid for node in systems.nodes])
    answers = run_clients(nodes, clients, systems.seconds, statement)
    return {GALERA: numbers_of(answers, systems.seconds, [0.0], clock.spent()[1]["nodes"])}


def _at_three_servers(systems: _Systems) -> dict[str, Numbers]:
    """Returns the numbers of clients at all servers, with the lag of these in milliseconds."""
    lag, has_ended = _Lag(systems.databases), threading.Event()
    systems.settle()
    with _beside(partial(lag.watch, has_ended), has_ended.set):
        _, numbers = pgbench(
            "update",
            systems.databases,
            systems.pids(),
            clients=CLIENTS_AT_THREE,
            seconds=systems.seconds,
        )
    found = {GROUP: numbers | lag.numbers()}
    return found | _at_galera(systems, systems.nodes, CLIENTS_AT_THREE, "update")


class _Lag:
    """How long servers lack what one of them shows: the age of the oldest transaction that is
    missing, looked at every 10 ms.
    """

    def __init__(self, databases: Sequence[str]) -> None:
        self._databases = databases
        self._lags_ms: list[float] = []

    def watch(self, has_ended: threading.Event) -> None:
        """Looks until the event is set."""
        newest, seen_s = [0], [0.0]
        with ExitStack() as stack:
            sessions = [
                stack.enter_context(psycopg.connect(database, autocommit=True))
                for database in self._databases
            ]
            while not has_ended.wait(LAG_PERIOD_SECONDS):
                versions = [_version(session) for session in sessions]
                now_s = time.monotonic()
                if max(versions) > newest[-1]:
                    newest.append(max(versions))
                    seen_s.append(now_s)
                missing = (bisect.bisect_right(newest, version) for version in versions)
                self._lags_ms += [
                    (now_s - seen_s[place]) * 1e3 if place < len(newest) else 0.0
                    for place in missing
                ]

    def numbers(self) -> Numbers:
        """Returns the quantiles in milliseconds."""
        hundredths = statistics.quantiles(self._lags_ms, n=100)
        return {f"lag_p{each}_ms": round(hundredths[each - 1], 1) for each in (50, 99)}


def _version(session: "psycopg.Connection[Any]") -> int:
    row = session.execute("SELECT coalesce(max(version), 0) FROM groupcert.executed").fetchone()
    assert row is not None, "an aggregate without a row"
    return int(row[0])


def _while_copying(systems: _Systems) -> Numbers:
    """Returns how long transactions at all servers take while the first one copies rows in, and
    how long that takes: the rows, and its COMMIT.
    """
    took: Numbers = {}

    def copy() -> None:
        time.sleep(0.6 * COPY_SECONDS)
        with psycopg.connect(systems.databases[0]) as session:
            ((number,),) = session.execute("SELECT coalesce(min(id), 0) FROM added").fetchall()
            began = time.monotonic()
            with session.cursor().copy("COPY added FROM STDIN") as rows:
                for before in range(1, COPIED_ROWS + 1):
                    rows.write_row((number - before, "x" * VALUE_BYTES))
            has_copied = time.monotonic()
            session.commit()
            took["copy_s"] = round(has_copied - began, 3)
            took["commit_s"] = round(time.monotonic() - has_copied, 3)

    systems.settle()
    rate = [f"--rate={COPY_RATE}"]
    with _beside(copy):
        answers, _ = pgbench(
            "update", systems.databases, (), clients=24, seconds=COPY_SECONDS, more=rate
        )
    systems.settle()
    return took | {f"others_{name}_ms": each for name, each in answers.latencies().items()}


@contextmanager
def _beside(work: Callable[[], None], end: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Has a thread work beside the block, and ends it with the block; raises what it raised."""
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        try:
            yield
        finally:
            end()
    working.result()


def _compared(rounds: Sequence[Mapping[str, Numbers]]) -> dict[str, Numbers]:
    """Returns the medians of each system, and beside the group: the share of its rate that the
    group reaches, and the milliseconds that a commit takes longer, on average and in the median.
    """
    found = {system: medians([each[system] for each in rounds]) for system in rounds[0]}

    def middle(compare: Callable[[Numbers, Numbers], float], system: str) -> float:
        pairs = (compare(each[GROUP], each[system]) for each in rounds)
        return round(statistics.median(pairs), 3)

    for system in set(found) - {GROUP}:
        found[system] |= {
            "group_rate_ratio": middle(
                lambda ours, theirs: ours["commits_per_second"] / theirs["commits_per_second"],
                system,
            ),
            "group_longer_avg_ms": middle(lambda a, b: a["avg_ms"] - b["avg_ms"], system),
            "group_longer_p50_ms": middle(lambda a, b: a["p50_ms"] - b["p50_ms"], system),
        }
    return found
