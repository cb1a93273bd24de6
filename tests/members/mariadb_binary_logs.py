"""Binary logs that a real MariaDB server makes for a test: group commits in several domains."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests import servers

SERVER_ID = 3
DOMAINS = 3
SESSIONS = 12
ROWS_A_SESSION = 10


@contextmanager
def logging_server(folder: Path) -> Iterator[servers.MariaDbServer]:
    """A server that logs rows, with what it knows of their tables, and commits groups.

    Raises:
        ServerMissing: MariaDB is not installed.
    """
    options = (
        "--log-bin=binlog",
        f"--server-id={SERVER_ID}",
        "--binlog-format=ROW",
        "--binlog-row-metadata=FULL",
        "--binlog-commit-wait-count=4",
        "--binlog-commit-wait-usec=20000",
    )
    with servers.MariaDbServer(folder, *options) as running:
        yield running


def make_logs(server: servers.MariaDbServer) -> list[Path]:
    """Two files of a new server's log: two tables, and rows of concurrent sessions in domains.

    The rows of a part have their hundred thousand, those of a session their hundred.
    """
    with closing(servers.connect_mariadb(server.url)) as session, session.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY, item INT)")
        cursor.execute("CREATE TABLE shop.items (id INT PRIMARY KEY)")
        for part in range(2):
            _insert_together(server, part)
            cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        names = [str(name) for name, *_ in cursor.fetchall()]
    return [server.data / name for name in names[:-1]]


def _insert_together(server: servers.MariaDbServer, part: int) -> None:
    """Has all sessions insert the rows of a part, at once."""
    failures: list[Exception] = []

    def insert(number: int) -> None:
        try:
            with closing(servers.connect_mariadb(server.url_of("shop"))) as own:
                with own.cursor() as cursor:
                    cursor.execute(f"SET gtid_domain_id = {number % DOMAINS}")
                    for row in range(ROWS_A_SESSION):
                        key = part * 100_000 + number * 100 + row
                        cursor.execute(f"INSERT INTO orders VALUES ({key}, {key + 7})")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=insert, args=(number,)) for number in range(SESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
