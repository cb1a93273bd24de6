"""Replicas of a live MariaDB under load of 32 clients, onto MariaDB and PostgreSQL by each scheme,
in turns with MariaDB's own replica.

Two tables of the shape that sysbench has, one with a second unique key, one with a foreign key to
it. The source has committed everything before a replica begins; a rate counts only if the rows are
the source's in the end. All servers are as durable as their defaults. A replica reads the source's
log while it executes, MariaDB's own has fetched it before its clock runs.
"""

import random
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from tests.bench.harness import Document, Load, Run, in_turns, machine, scratch
from tests.bench.mariadb_replica import MODES
from tests.integration.replicas import ReplicaProcess
from tests.integration.waiting import wait_for
from tests.servers import PREPARING, MariaDbServer, PostgreSqlServer, connect_mariadb

CLIENTS = 32
ROWS = 10_000
DATABASE, BASE = "shop", "base"
TABLES = ("parent", "child")
SCHEMES = ("logical-clock", "group-commit", "jobs --conflicts graph", "jobs --conflicts merge")
WORKERS = (0, 4, 8)
OWN = "own replica"
CATCH_UP_SECONDS_MAX = 300
DEADLOCK = 1213
SCHEMA = f"""
CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4;
USE {DATABASE};
CREATE TABLE parent (id int PRIMARY KEY, code varchar(20) NOT NULL, k int NOT NULL, c char(120),
  pad char(60), UNIQUE (code));
CREATE TABLE child (id bigint AUTO_INCREMENT PRIMARY KEY, parent int NOT NULL, k int, c char(120),
  FOREIGN KEY (parent) REFERENCES parent (id));
INSERT INTO parent SELECT seq, concat('c', seq), seq, repeat('c', 120), repeat('p', 60)
  FROM seq_1_to_{ROWS};
"""


def replicas(run: Run, transactions: int = 20_000, rounds: int = 3) -> Document:
    """Transactions a second of each scheme and of MariaDB's own replica, that catch up.

    Args:
        transactions: How many the source commits before; a replica executes them all.
        rounds: Turns, of which the median counts.
    """
    lines: list[tuple[str, Callable[[_Servers], float]]] = [
        (f"{target}, {scheme}, {workers} workers", partial(_caught_up, target, scheme, workers))
        for target, scheme, workers in product(("mariadb", "postgresql"), SCHEMES, WORKERS)
        if workers or scheme == SCHEMES[0]
    ]
    lines += [
        (f"mariadb, {OWN}, {mode}, {threads} threads", partial(_own, mode, threads))
        for mode, threads in product(MODES, WORKERS[1:])
    ]
    plan = in_turns([Load(name, measure) for name, measure in lines], rounds)
    results = run.measure(plan, _servers(transactions))
    rates = {
        name: {
            "transactions_per_second": round(statistics.median(found)),
            "least": round(min(found)),
            "most": round(max(found)),
        }
        for name, found in results.items()
    }
    return {
        "machine": machine(),
        "transactions": transactions,
        "rounds": rounds,
        "rates": rates,
        **run.document(),
    }


@dataclass(frozen=True, slots=True)
class _Servers:
    """The source, and the servers of replicas. `before`, `after`: MariaDB's positions of the source
    before the load, and after it.
    """

    folder: Path
    source: MariaDbServer
    mariadb: MariaDbServer
    postgresql: PostgreSqlServer
    before: str
    after: str
    transactions: int

    @property
    def url(self) -> str:
        """The source's database."""
        return self.source.url_of(DATABASE)


@contextmanager
def _servers(transactions: int) -> Iterator[_Servers]:
    binary_log = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW", "--sync-binlog=1")
    with scratch() as folder, ExitStack() as stack:
        source = stack.enter_context(MariaDbServer(folder / "source", *binary_log))
        mariadb = stack.enter_context(MariaDbServer(folder / "replica", "--server-id=2"))
        postgresql = stack.enter_context(PostgreSqlServer(folder / "postgresql", PREPARING))
        with _at(source.url) as execute:
            for statement in filter(str.strip, SCHEMA.split(";")):
                execute(statement)
            execute("CREATE USER replica@'127.0.0.1'")
            execute("GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'")
            before = _position(execute)
        with _at(mariadb.url) as execute:
            execute(
                f"CHANGE MASTER TO master_host='127.0.0.1', master_port={source.port},"
                " master_user='replica', master_use_gtid=slave_pos"
            )
            execute(f"CREATE DATABASE {BASE}")
        with psycopg.connect(postgresql.dsn, autocommit=True) as session:
            session.execute(f"CREATE DATABASE {BASE}".encode())
        for url in (mariadb.url_of(BASE), postgresql.dsn_of(BASE)):
            _replica(folder, source.url_of(DATABASE), url, "logical-clock", before, "--copy")
        _load(source.url_of(DATABASE), transactions)
        with _at(source.url) as execute:
            after = _position(execute)
        count = int(after.rpartition("-")[2]) - int(before.rpartition("-")[2])
        yield _Servers(folder, source, mariadb, postgresql, before, after, count)


def _load(url: str, transactions: int) -> None:
    """Commits transactions by as many sessions as there are clients."""

    def work(number: int) -> None:
        chance = random.Random(number)
        with _at(url) as execute:
            done = 0
            while done < transactions // CLIENTS:
                one, other = sorted(chance.sample(range(1, ROWS + 1), 2))
                text = f"{chance.random():.17f}" * 6
                try:
                    execute("BEGIN")
                    execute(f"UPDATE parent SET k = k + 1 WHERE id = {one}")
                    execute(f"UPDATE parent SET c = '{text}' WHERE id = {other}")
                    execute(f"INSERT INTO child (parent, k, c) VALUES ({one}, {other}, '{text}')")
                    execute("COMMIT")
                except pymysql.err.OperationalError as error:
                    if error.args[0] != DEADLOCK:
                        raise
                    continue
                done += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _caught_up(target: str, scheme: str, workers: int, servers: _Servers) -> float:
    """Returns the transactions a second of a replica that has everything to execute."""
    url = _fresh_mariadb(servers) if target == "mariadb" else _fresh_postgresql(servers)
    seconds = _replica(
        servers.folder, servers.url, url, scheme, servers.after, "--workers", str(workers)
    )
    session: Any = connect_mariadb(url) if target == "mariadb" else psycopg.connect(url)
    with closing(session), closing(connect_mariadb(servers.url)) as source:
        assert _rows(session) == _rows(source), f"other rows after {scheme}"
    return servers.transactions / seconds


def _replica(
    folder: Path, source: str, target: str, scheme: str, until: str, *arguments: str
) -> float:
    """Runs a replica until a position; returns the seconds from its start to its end."""
    domain, server, number = until.split("-")
    log = folder / "replica.log"
    log.unlink(missing_ok=True)
    end = ("--until-after-gtids", f"{domain}-{server}:1-{number}")
    with ReplicaProcess(folder, [source], target, scheme, *end) as replica:
        if code := replica.run(*arguments):
            raise AssertionError(f"exit status {code}: {replica.last_line()}")
        times = [
            datetime.fromisoformat(replica.events(name)[0]["timestamp"])
            for name in ("replica_started", "replica_ended")
        ]
    return max((times[1] - times[0]).total_seconds(), 1e-3)


def _fresh_mariadb(servers: _Servers) -> str:
    """Returns a database with the rows of before the load."""
    _fill(servers, "run", [*TABLES, "groupcert_checkpoint", "groupcert_executed"])
    return servers.mariadb.url_of("run")


def _fill(servers: _Servers, database: str, tables: Sequence[str]) -> None:
    with _at(servers.mariadb.url) as execute:
        execute("SET foreign_key_checks = 0")
        execute(f"DROP DATABASE IF EXISTS {database}")
        execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
        execute(f"USE {database}")
        for table in tables:
            ((_, definition),) = execute(f"SHOW CREATE TABLE {BASE}.{table}")
            execute(definition)
            execute(f"INSERT INTO {table} SELECT * FROM {BASE}.{table}")


def _fresh_postgresql(servers: _Servers) -> str:
    with psycopg.connect(servers.postgresql.dsn, autocommit=True) as session:
        session.execute(b"DROP DATABASE IF EXISTS run WITH (FORCE)")
        session.execute(f"CREATE DATABASE run TEMPLATE {BASE}".encode())
    return servers.postgresql.dsn_of("run")


def _own(mode: str, threads: int, servers: _Servers) -> float:
    """Returns the transactions a second of MariaDB's own replica."""
    with _at(servers.mariadb.url) as execute:
        execute("STOP SLAVE")
        _fill(servers, DATABASE, TABLES)
        execute(f"SET GLOBAL gtid_slave_pos='{servers.before}'")
        execute(f"SET GLOBAL slave_parallel_threads={threads}")
        execute(f"SET GLOBAL slave_parallel_mode='{mode}'")
        execute("START SLAVE IO_THREAD")
        wait_for(
            "the replica has the binary log",
            lambda: _fetched(servers.mariadb) == servers.after,
            CATCH_UP_SECONDS_MAX,
        )
        began = datetime.now()
        execute("START SLAVE SQL_THREAD")
        waited = f"SELECT MASTER_GTID_WAIT('{servers.after}', {CATCH_UP_SECONDS_MAX})"
        assert execute(waited) == [(0,)], "the replica did not catch up"
        seconds = (datetime.now() - began).total_seconds()
        execute("STOP SLAVE")
    own, source = (
        connect_mariadb(each.url_of(DATABASE)) for each in (servers.mariadb, servers.source)
    )
    with closing(own), closing(source):
        assert _rows(own) == _rows(source), f"other rows after {mode}"
    return servers.transactions / seconds


def _fetched(server: MariaDbServer) -> str:
    with closing(connect_mariadb(server.url)) as session:
        with session.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("SHOW SLAVE STATUS")
            return str(cursor.fetchall()[0]["Gtid_IO_Pos"])


def _rows(session: Any) -> list[Any]:
    found = []
    for table in TABLES:
        with session.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table} ORDER BY id")
            found.append([tuple(row) for row in cursor.fetchall()])
    return found


def _position(execute: Callable[[str], Any]) -> str:
    return str(execute("SELECT @@gtid_binlog_pos")[0][0])


@contextmanager
def _at(url: str) -> Iterator[Callable[[str], Any]]:
    """Yields a function that runs a statement in one session, and returns its rows."""
    with closing(connect_mariadb(url)) as session, session.cursor() as cursor:

        def execute(statement: str) -> Any:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

        yield execute
