"""A binary log that a MariaDB server writes: sessions at once, each transaction one row of many.

Events and their sizes are a real server's. It does not wait for its disk, so that a million
transactions take half a minute; hardly any of them commit as a group then.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from tests.bench.harness import scratch
from tests.servers import MariaDbServer, connect_mariadb

DATABASES = 8
ROWS = 12_500
"""Of each database's table."""
_LOAD = """
    FOR number IN 1..transactions DO
        SET @id = 1 + floor(rand() * {rows});
        INSERT INTO orders VALUES (@id, 1, md5(number))
            ON DUPLICATE KEY UPDATE amount = amount + 1, note = md5(number);
    END FOR
"""


@contextmanager
def source_log(transactions: int) -> Iterator[Path]:
    """Yields the file of a log of so many transactions, and a few more that made the tables."""
    options = (
        "--log-bin=binlog",
        "--server-id=1",
        "--binlog-format=ROW",
        "--binlog-row-metadata=FULL",
        "--sync-binlog=0",
        "--innodb-flush-log-at-trx-commit=0",
        "--max-binlog-size=1G",
    )
    with scratch() as folder:
        with MariaDbServer(folder / "source", *options) as server:
            names = [f"shop{number}" for number in range(DATABASES)]
            for name in names:
                _run(server.url, f"CREATE DATABASE {name}")
                _run(server.url_of(name), *_tables())
            with ThreadPoolExecutor(DATABASES) as pool:
                each = f"CALL load_orders({transactions // DATABASES})"
                list(pool.map(lambda name: _run(server.url_of(name), each), names))
            data = server.data
        yield data / "binlog.000001"


def _tables() -> list[str]:
    return [
        "CREATE TABLE orders (id INT PRIMARY KEY, amount INT NOT NULL, note VARCHAR(40) NOT NULL)",
        f"CREATE PROCEDURE load_orders(transactions INT) BEGIN {_LOAD.format(rows=ROWS)}; END",
    ]


def _run(url: str, *statements: str) -> None:
    with closing(connect_mariadb(url)) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
