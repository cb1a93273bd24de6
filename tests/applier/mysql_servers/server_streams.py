"""A live MariaDB for tests of its stream, and what its load leaves in its log."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from groupcert.applier.mysql_logs.binary_log_reader import (
    BinaryLogTransaction,
    TransactionReader,
    read_binary_log,
)
from groupcert.applier.mysql_servers.server_stream import ServerStream, mariadb_gtids
from groupcert.applier.mysql_servers.server_url import ServerUrl
from groupcert.certifier.gtid_set import GtidSet
from tests import servers

LOGGING = (
    "--log-bin=binlog",
    "--server-id=3",
    "--binlog-format=ROW",
    "--max-allowed-packet=64M",
    "--gtid-strict-mode=ON",
)
FULL = "--binlog-row-metadata=FULL"
LARGE_BYTES = 20 << 20
SESSIONS = 8


def execute(server: servers.MariaDbServer, *statements: str) -> tuple[tuple[object, ...], ...]:
    """Executes statements in a session of its own; returns the rows of the last one."""
    with closing(servers.connect_mariadb(server.url)) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return tuple(cursor.fetchall())


def insert_together(server: servers.MariaDbServer, first: int, rows: int = 10) -> None:
    """Has sessions insert rows into `shop.orders` at once, in two domains."""
    failures: list[Exception] = []

    def insert(session: int) -> None:
        try:
            keys = range(first + session * rows, first + (session + 1) * rows)
            inserts = [f"INSERT INTO shop.orders VALUES ({key}, 'x')" for key in keys]
            execute(server, f"SET gtid_domain_id = {session % 2}", *inserts)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=insert, args=(session,)) for session in range(SESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def make_shop(server: servers.MariaDbServer) -> None:
    """Makes the table of `insert_together`; groups of transactions commit together from now on."""
    execute(
        server,
        "SET GLOBAL binlog_commit_wait_count = 4, GLOBAL binlog_commit_wait_usec = 5000",
        "CREATE OR REPLACE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, note LONGTEXT)",
    )


def last_gtids(server: servers.MariaDbServer) -> GtidSet:
    """The newest GTID of each domain in the server's log."""
    ((text,),) = execute(server, "SELECT @@gtid_binlog_pos")
    return mariadb_gtids(str(text))


def prefix(newest: GtidSet) -> GtidSet:
    """All up to the newest of each domain."""
    gtids = GtidSet()
    for source in newest.sources():
        gtids.add_interval(source, 1, newest.intervals(source)[-1][1])
    return gtids


@contextmanager
def open_stream(
    server: servers.MariaDbServer, executed: GtidSet | None = None, replica: str = "r1"
) -> Iterator[ServerStream]:
    """A stream of all that is not executed."""
    stream = ServerStream(ServerUrl.parse(server.url), replica)
    try:
        stream.open(executed or GtidSet())
        yield stream
    finally:
        stream.close()


def streamed(stream: ServerStream, until: GtidSet) -> list[BinaryLogTransaction]:
    """The transactions of a stream, up to these, with their rows."""
    reader = TransactionReader(rows=True)
    found: list[BinaryLogTransaction] = []
    left = until.copy()
    for event in stream:
        for transaction in reader.read(event):
            found.append(transaction)
            assert transaction.named is not None
            left = left - GtidSet.of(transaction.named)
        if not left:
            return found
    raise AssertionError("a stream that ends")


def log_files(server: servers.MariaDbServer) -> list[Path]:
    """The files of the server's log."""
    return [server.data / str(name) for name, *_ in execute(server, "SHOW BINARY LOGS")]


def purge(server: servers.MariaDbServer) -> None:
    """Removes all files of the log but a new one; one that a stream reads stays for a while."""
    execute(server, "FLUSH BINARY LOGS")
    while len(files := log_files(server)) > 1:
        execute(server, f"PURGE BINARY LOGS TO '{files[-1].name}'")
        time.sleep(0.05)


def logged(server: servers.MariaDbServer) -> list[BinaryLogTransaction]:
    """The transactions of all files of the server's log."""
    return [each for path in log_files(server) for each in read_binary_log(path)]


def without_rows(transactions: Sequence[BinaryLogTransaction]) -> list[BinaryLogTransaction]:
    """Transactions as a file tells them; a stream has no annotations, which count in a file."""
    return [each._replace(size_bytes=0, payload=b"", statements=()) for each in transactions]
