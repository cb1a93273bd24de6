"""A shop on a MySQL or MariaDB server: tables with foreign keys, second unique keys and most types,
and clients that change them in every way.
"""

import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any

import pymysql

from tests.integration.waiting import wait_for
from tests.servers import connect_mariadb

DATABASE, FLAT = "shop", "flat"
_KEYS = re.compile(r",\s*(FOREIGN KEY|UNIQUE) \([^)]*\)( REFERENCES[^)]*\))?( ON [A-Z ]*)?")
TABLES = ("customer", "orders", "item", "plain")
COLUMNS = {"plain": "id, value, bits + 0, year"}
"""Of a table whose columns servers show differently."""
CONFLICTS = (1062, 1205, 1213, 1451, 1452, 1761)
"""What the shop's clients may be told by each other: duplicates, locks, deadlocks, missing rows."""
SCHEMA = f"""
CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4;
USE {DATABASE};
CREATE TABLE customer (
  id int unsigned AUTO_INCREMENT PRIMARY KEY, email varchar(60) NOT NULL, name varchar(40),
  balance decimal(14,3) NOT NULL DEFAULT 0, born date, score float, UNIQUE (email));
CREATE TABLE orders (
  id bigint AUTO_INCREMENT PRIMARY KEY, customer int unsigned NOT NULL,
  state enum('new','it''s paid','sent') NOT NULL DEFAULT 'new', total double,
  note text CHARACTER SET latin1,
  placed datetime(6), seen timestamp(3) NULL,
  FOREIGN KEY (customer) REFERENCES customer (id) ON DELETE CASCADE);
CREATE TABLE item (
  orders bigint, line tinyint unsigned, sku binary(4) NOT NULL, amount smallint, picture blob,
  tags set('a','b','c'), took time(2), PRIMARY KEY (orders, line), UNIQUE (orders, sku),
  FOREIGN KEY (orders) REFERENCES orders (id) ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE plain (id int PRIMARY KEY, value varchar(200), bits bit(9), year year);
"""


class ShopLoad:
    """Clients of a server."""

    def __init__(self, url: str, *, is_flat: bool = False) -> None:
        """Makes the tables, with some rows in them; flat ones have neither foreign keys nor second
        unique keys.
        """
        self._url = url
        self.database = FLAT if is_flat else DATABASE
        schema = SCHEMA.replace(DATABASE, self.database)
        schema = _KEYS.sub("", schema) if is_flat else schema
        self._stopped = threading.Event()
        self.commits = 0
        self.errors: list[Exception] = []
        with closing(connect_mariadb(url)) as session, session.cursor() as cursor:
            for statement in filter(str.strip, schema.split(";")):
                cursor.execute(statement)
            for number in range(20):
                cursor.execute("INSERT INTO customer (email) VALUES (%s)", (f"{number}@start",))
                cursor.execute("INSERT INTO plain VALUES (%s, '', 1, 2000)", (number,))

    def run(self, count: int, clients: int = 4, seed: int = 1) -> None:
        """Commits so many transactions, or tries to, by clients at work at the same time."""
        threads = [
            threading.Thread(target=self._work, args=(count // clients, seed * 100 + number))
            for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    @contextmanager
    def running(self, clients: int = 3) -> Iterator[None]:
        """Clients are at work during the block."""
        self._stopped.clear()
        thread = threading.Thread(target=self.run, args=(clients * 10**6, clients))
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    def wait_for_commits(self, count: int) -> None:
        """Returns when so many more are committed."""
        wanted = self.commits + count
        wait_for(f"{count} more commits", lambda: self.errors or self.commits >= wanted)

    def _work(self, count: int, seed: int) -> None:
        chance = random.Random(seed)
        with closing(connect_mariadb(f"{self._url}{self.database}")) as session:
            with session.cursor() as cursor:
                cursor.execute("SET innodb_lock_wait_timeout = 2")
                for _ in range(count):
                    if self._stopped.is_set():
                        return
                    try:
                        cursor.execute("BEGIN")
                        for _ in range(chance.randrange(1, 4)):
                            chance.choice(CHANGES)(cursor, chance)
                        cursor.execute("COMMIT")
                        self.commits += 1
                    except pymysql.err.MySQLError as error:
                        if error.args[0] not in CONFLICTS:
                            self.errors.append(error)
                            return
                        cursor.execute("ROLLBACK")


def rows_of(session: Any) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of all tables of the shop, each column as text or bytes; of any server."""
    found = {}
    for table in TABLES:
        with session.cursor() as cursor:
            cursor.execute(f"SELECT {COLUMNS.get(table, '*')} FROM {table}")
            found[table] = sorted(tuple(map(_plain, row)) for row in cursor.fetchall())
    return found


def _plain(value: Any) -> str:
    if isinstance(value, memoryview):
        value = bytes(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _new_customer(cursor: Any, chance: random.Random) -> None:
    cursor.execute(
        "INSERT INTO customer (email, name, born, score) VALUES (%s, %s, %s, %s)",
        (
            f"{chance.randrange(10**6)}@new",
            chance.choice([None, "Ärger", "O'Neil", "a\\b", "", "\U0001f600"]),
            chance.choice([None, "1970-01-01", "9999-12-31"]),
            chance.choice([None, 0.1, 1e10, -3.5]),
        ),
    )
    _new_order(cursor, chance, cursor.lastrowid)


def _new_order(cursor: Any, chance: random.Random, customer: int = 0) -> None:
    cursor.execute(
        "INSERT INTO orders (customer, total, note, placed, seen) VALUES (%s, %s, %s, now(6), %s)",
        (
            customer or chance.randrange(1, 60),
            chance.choice([None, 0.1, 1e20, -1.5e-10]),
            chance.choice([None, "", "x" * 300, "\u20ac\u00e9", "line\nline\ttab"]),
            chance.choice([None, "2024-03-31 02:30:00.125"]),
        ),
    )
    order = cursor.lastrowid
    for line in range(chance.randrange(0, 4)):
        cursor.execute(
            "INSERT INTO item VALUES (%s, %s, %s, %s, %s, %s, %s)",
            (
                order,
                255 - line,
                chance.choice([b"a", b"b\0\0\0", b"\xff\0c", b"d   "]) if line else b"first"[:4],
                chance.randrange(-(1 << 15), 1 << 15),
                chance.choice([None, b"", bytes(range(256))]),
                chance.choice([None, "", "a,c"]),
                chance.choice([None, "-01:00:00.50", "23:59:59.99"]),
            ),
        )


def _changed(cursor: Any, chance: random.Random) -> None:
    cursor.execute(
        "UPDATE customer SET balance = balance + %s, name = %s WHERE id = %s",
        (chance.randrange(-9, 9) / 1000, f"n{chance.random()}", chance.randrange(1, 60)),
    )
    cursor.execute(
        "UPDATE orders SET state = %s, note = concat(coalesce(note, ''), '+') WHERE customer = %s",
        (chance.choice(["new", "it's paid", "sent"]), chance.randrange(1, 60)),
    )


def _many(cursor: Any, chance: random.Random) -> None:
    first = chance.randrange(0, 2000)
    rows = [(number, "v" * chance.randrange(200)) for number in range(first, first + 40)]
    cursor.executemany("REPLACE INTO plain (id, value) VALUES (%s, %s)", rows)
    cursor.execute("UPDATE plain SET value = 'all', bits = 257 WHERE id %% 97 = %s", (first % 97,))
    cursor.execute("DELETE FROM plain WHERE id BETWEEN %s AND %s", (first, first + 20))


def _swapped(cursor: Any, chance: random.Random) -> None:
    """Two customers change their addresses, by way of a third one."""
    one, other = chance.sample(range(1, 60), 2)
    cursor.execute("SELECT id, email FROM customer WHERE id IN (%s, %s) FOR UPDATE", (one, other))
    if len(found := cursor.fetchall()) == 2:
        (first, mine), (second, theirs) = found
        change = "UPDATE customer SET email = %s WHERE id = %s"
        cursor.execute(change, (f"swap{first}", first))
        cursor.execute(change, (mine, second))
        cursor.execute(change, (theirs, first))


def _moved(cursor: Any, chance: random.Random) -> None:
    """Keys change: of an item, and of an order, whose items go with it."""
    cursor.execute(
        "UPDATE item SET line = line - 100 WHERE line > 200 AND orders = %s",
        (chance.randrange(1, 400),),
    )
    cursor.execute("UPDATE orders SET id = id + 1000000 WHERE id = %s", (chance.randrange(1, 400),))


def _removed(cursor: Any, chance: random.Random) -> None:
    cursor.execute("DELETE FROM customer WHERE id = %s", (chance.randrange(20, 60),))
    cursor.execute("DELETE FROM orders WHERE customer = %s LIMIT 2", (chance.randrange(1, 60),))


CHANGES: Sequence[Any] = (
    _new_customer,
    _new_order,
    _changed,
    _changed,
    _many,
    _swapped,
    _moved,
    _removed,
)
"""Each is a part of a transaction."""
