"""Measures what jobs cost at a target of the user's own, for `groupcert whatif --measure`.

Costs that were measured elsewhere are those of other machines, disks and networks. Here the
applier's own target executes and commits jobs, in a database that is made for it and dropped; what
a job takes is divided into the applier's processor, the server's, and waiting. The server's
processes are seen where it runs on this machine; else all that it takes counts as waiting.

The rule it keeps: nothing but that database is touched, and none that was there before.

Source: proc(5), /proc/pid/task/tid/schedstat: the first number is time on a processor, in
nanoseconds.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg

from ...applier.engine.applier import Applier
from ...applier.errors import UnsuitableTarget
from ...applier.mysql_servers.server_url import ServerUrl
from ...applier.queue.job import CommitGroup, Job
from ...applier.queue.relay_group import RelayEntry
from ...applier.queue.target_progress import Checkpoint, TargetProgress
from ...applier.schemes.catalogue import scheme
from ...applier.targets import mysql, postgresql
from ...applier.targets.sql import SqlExecution, SqlTarget
from ...applier.targets.sql_schema import SqlSchema
from ...applier.targets.sql_server import ACCESS
from ...applier.whatif.costs import Costs
from ...applier.whatif.measured_costs import GROUP, MANY, Measured, Spent, measured_costs
from ...certifier.gtid import Gtid
from ..errors.usage import InvalidOption
from ..host.progress_bar import progress
from ..wire.row_changes import decode_changes, encode_changes

DATABASE = "groupcert_whatif"
SECONDS_MAX = 40.0
ROUNDS_MIN, ROUNDS_MAX = 5, 200
"""Turns: the fewest, however long they take, and the most."""
APPLIED_TRANSACTIONS = 64
STOP_SECONDS_MAX = 30
BUSY = 1.5
"""Programs a processor from which on what is measured is not the target's own; it runs one."""
_TABLES = ("first", "second")
_EXPECTED = "mysql://user@host/, mariadb://user@host/ or postgresql://user@host/"
_SOURCE = "00000000-0000-0000-0000-000000000001"
_VALUE = b"x" * 60
_HERE = ("localhost", "127.0.0.1", "::1")
_SCHEMA = "\n".join(
    f'[tables."{name}"]\ntable = "{name}"\nkey = {{ id = "integer" }}\nvalue = {{ value = "text" }}'
    for name in _TABLES
)

SqlJob = Job[SqlExecution]
Query = Callable[[str], Sequence[tuple[Any, ...]]]


def costs_at(url: str) -> tuple[Costs, Sequence[str]]:
    """Returns the costs of a target, and what was measured in words; it takes a minute at most.

    Raises:
        InvalidOption: it is no URL of a server, or has a database `groupcert_whatif`.
        UnsuitableTarget, SourceRefused, SourceLost: it cannot be a target, or does not answer.
    """
    with _scratch(url) as (target, processes), progress("measuring", ROUNDS_MAX) as state:
        jobs = _Jobs(target)
        jobs.round(_SERIES[0])  # Opens all sessions.
        jobs.processes = processes()
        # In turns: whatever else the machine does meets all alike.
        rounds = [jobs.turn() for _ in state.counted(_turns())]
    one, alone, _, group, many, _, tables, _, newest, _, serial, crowded = (
        _least_disturbed(each) for each in zip(*rounds, strict=True)
    )
    measured = Measured(one, many, tables, newest, alone, group, serial, crowded)
    cores = os.cpu_count() or 1
    costs = measured_costs(measured, cores)
    notes = [_told(urlsplit(url).hostname or "", measured, costs, bool(jobs.processes))]
    if (busy := os.getloadavg()[0]) > BUSY * cores:
        notes.append(
            f"{busy:.1f} programs at once wanted the {cores} processors while it measured: waits "
            f"are longer than they are without those; measure again when they have ended"
        )
    return costs, notes


def _turns() -> Iterator[int]:
    """Yields the numbers of turns, while there is time for more."""
    until = time.monotonic() + SECONDS_MAX
    for turn in range(ROUNDS_MAX):
        if turn >= ROUNDS_MIN and time.monotonic() > until:
            return
        yield turn


class _Series(NamedTuple):
    """Jobs that are alike. `together`: they commit as a group, which is one commit."""

    rows: int = 1
    tables: int = 1
    keeps_newest: bool = False
    together: bool = True


_SERIES = (
    _Series(together=False),
    _Series(),
    _Series(rows=MANY),
    _Series(rows=MANY, tables=2),
    _Series(keeps_newest=True),
)


class _Jobs:
    """Makes jobs, which write rows of their own, and measures what the target takes for them.
    `processes`: those of its server.
    """

    def __init__(self, target: SqlTarget) -> None:
        self.processes: Sequence[int] = ()
        self._target = target
        self._number = 0

    def turn(self) -> list[Spent]:
        """Returns the times of an execution and a commit of each series, then those of a
        transaction of an applier with one worker, and with `GROUP`.
        """
        found = [spent for series in _SERIES for spent in self.round(series)]
        return [*found, self._applied(1), self._applied(GROUP)]

    def round(self, series: _Series) -> tuple[Spent, Spent]:
        """Has each of `GROUP` workers execute a job, and commits them; returns both times."""
        jobs = [self._job(worker, series) for worker in range(GROUP)]
        executed = self._spent(partial(self._execute, jobs), GROUP)
        groups = [jobs] if series.together else [[job] for job in jobs]
        return executed, self._spent(partial(self._commit, groups), len(groups))

    def _applied(self, workers: int) -> Spent:
        entries = [self._entry(_TABLES[0]) for _ in range(APPLIED_TRANSACTIONS)]
        errors: list[Exception] = []
        applier = Applier(
            self._target,
            scheme("logical-clock"),
            workers,
            on_committed=lambda version, position: None,
            on_error=errors.append,
        )

        def apply() -> None:
            applier.append(entries)
            applier.drain()

        try:
            spent = self._spent(apply, len(entries))
        finally:
            applier.stop(STOP_SECONDS_MAX)
        if errors:
            raise errors[0]
        return spent

    def _job(self, worker: int, series: _Series) -> SqlJob:
        entries = [self._entry(_TABLES[row % series.tables]) for row in range(series.rows)]
        return Job(entries, worker=worker, keeps_newest=series.keeps_newest)

    def _entry(self, table: str) -> RelayEntry:
        """Returns the next transaction, which follows no other."""
        self._number += 1
        number = self._number
        payload = encode_changes([f"{table}/{number}".encode()], [_VALUE])
        return RelayEntry(number, number, Gtid(_SOURCE, number), 0, number, False, payload)

    def _execute(self, jobs: Sequence[SqlJob]) -> None:
        for job in jobs:
            job.execution = self._target.execute(job)

    def _commit(self, groups: Sequence[list[SqlJob]]) -> None:
        for group in groups:
            self._target.commit(CommitGroup(1, group), TargetProgress(Checkpoint()))

    def _spent(self, work: Callable[[], None], count: int) -> Spent:
        """Does some work; returns the time of each of `count` equal parts of it."""
        server_us, applier_us, began_us = self._server_us(), _applier_us(), _now_us()
        work()
        all_us, applier_us = _now_us() - began_us, _applier_us() - applier_us
        server_us = self._server_us() - server_us
        return Spent(all_us / count, applier_us / count, server_us / count)

    def _server_us(self) -> float:
        """Returns the time that all threads of the server have been on a processor."""
        spent_ns = 0
        for process in self.processes:
            for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
                with suppress(OSError):  # The thread has ended.
                    spent_ns += int(path.read_text().split()[0])
        return spent_ns / 1e3


def _now_us() -> float:
    return time.perf_counter_ns() / 1e3


def _applier_us() -> float:
    return time.process_time_ns() / 1e3


def _least_disturbed(rounds: Sequence[Spent]) -> Spent:
    """Returns the lowest twentieth of each part: whatever else runs makes them longer."""
    parts = zip(*rounds, strict=True)
    return Spent(*(quantiles(each, n=20, method="inclusive")[0] for each in parts))


class _MySql:
    """MySQL and MariaDB."""

    programs = ("mysqld", "mariadbd")
    value = "VARCHAR(255) CHARACTER SET utf8mb4"
    exists = f"SELECT 1 FROM information_schema.schemata WHERE schema_name = '{DATABASE}'"
    drop = f"DROP DATABASE {DATABASE}"
    server = mysql.MySqlServer

    @staticmethod
    def connect(url: str) -> Any:
        """Opens a session, each of whose statements commits."""
        parsed = ServerUrl.parse(url)
        session = parsed.connect()
        if parsed.database == DATABASE:
            session.select_db(DATABASE)
        return session

    @staticmethod
    def processes(query: Query) -> Sequence[int]:
        """Returns the server's process, if its file can be read here."""
        [(path,)] = query("SELECT @@pid_file")
        with suppress(OSError, ValueError):
            return [int(Path(path).read_text())]
        return []


class _PostgreSql:
    """PostgreSQL, which has a process for each session."""

    programs = ("postgres",)
    value = "text"
    exists = f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'"
    drop = f"DROP DATABASE {DATABASE} WITH (FORCE)"
    server = postgresql.PostgreSqlServer

    @staticmethod
    def connect(url: str) -> Any:
        """Opens a session, each of whose statements commits."""
        try:
            return psycopg.connect(url, autocommit=True)
        except psycopg.OperationalError as error:
            name = urlsplit(url).hostname or ""
            raise UnsuitableTarget(target=name, problem=str(error), expected=ACCESS) from error

    @staticmethod
    def processes(query: Query) -> Sequence[int]:
        """Returns the processes of all sessions, and those that write for them."""
        return [pid for (pid,) in query("SELECT pid FROM pg_stat_activity")]


_Kind = type[_MySql] | type[_PostgreSql]
_KINDS: dict[str, _Kind] = {
    "mysql": _MySql,
    "mariadb": _MySql,
    "postgresql": _PostgreSql,
    "postgres": _PostgreSql,
}


@contextmanager
def _scratch(url: str) -> Iterator[tuple[SqlTarget, Callable[[], Sequence[int]]]]:
    """Makes the database with its tables; yields it as a target, and what finds the processes of
    its server, if that runs on this machine; drops the database.
    """
    parts = urlsplit(url)
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        raise InvalidOption(name="--measure", value=f"{parts.scheme}://...", expected=_EXPECTED)
    own = parts._replace(path=f"/{DATABASE}").geturl()
    with _queries(kind, url) as query:
        if query(kind.exists):
            expected = f"a server without a database {DATABASE}; drop it there, if nobody measures"
            raise InvalidOption(name="--measure", value=parts.hostname, expected=expected)
        query(f"CREATE DATABASE {DATABASE}")
        try:
            with _queries(kind, own) as inside:
                for name in _TABLES:
                    inside(f"CREATE TABLE {name} (id int PRIMARY KEY, value {kind.value})")
            schema = SqlSchema.parse(_SCHEMA, decode_changes)
            target = SqlTarget(kind.server(own), schema, replica="whatif", workers=GROUP)
            with closing(target):
                yield target, lambda: _running(kind, query) if parts.hostname in _HERE else []
        finally:
            query(kind.drop)


def _running(kind: _Kind, query: Query) -> list[int]:
    """Returns the processes of a server that run on this machine."""
    found = []
    for process in kind.processes(query):
        with suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text().strip() in kind.programs:
                found.append(process)
    return found


@contextmanager
def _queries(kind: _Kind, url: str) -> Iterator[Query]:
    """Yields a function that runs a statement in a session, and returns its rows."""
    with closing(kind.connect(url)) as session, session.cursor() as cursor:

        def query(statement: str) -> Sequence[tuple[Any, ...]]:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

        yield query


def _told(host: str, measured: Measured, costs: Costs, has_server: bool) -> str:
    one, alone = measured.one, measured.alone
    server = f"{one.server_us:.0f} the server's, " if has_server else ""
    seen = "" if has_server else "; what the server's processors take there counts as waiting"
    syncs = "share a sync" if costs.syncs_together else "sync one by one"
    return (
        f"measured at {host}: a row takes {one.all_us:.0f} us ({one.applier_us:.0f} the applier's "
        f"processor, {server}{one.wait_us:.0f} waiting), each further one merged with it "
        f"{costs.row_us}, a commit {alone.all_us:.0f} ({alone.wait_us:.0f} waiting); jobs that "
        f"commit together {syncs}{seen}; --like takes it from a file with the report of --json"
    )
