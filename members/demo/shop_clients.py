"""A shop at a MariaDB server, and clients that change it: the load of `groupcert demo --replicas`.

Its tables have a foreign key and a second unique key, so that transactions of other rows depend on
each other: an order on its customer, a customer on the one whose email address it takes over.
"""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pymysql

from ..host.mariadb_server import MariaDbServer

DATABASE = "shop"
TABLES = ("customers", "orders")
CUSTOMERS = 400
"""At the beginning."""
SCHEMA = (
    """CREATE TABLE customers (
        id int AUTO_INCREMENT PRIMARY KEY, email varchar(60) NOT NULL,
        balance decimal(12,2) NOT NULL DEFAULT 0, UNIQUE (email))""",
    """CREATE TABLE orders (
        id bigint AUTO_INCREMENT PRIMARY KEY, customer int NOT NULL,
        state enum('new','paid') NOT NULL DEFAULT 'new', total decimal(12,2) NOT NULL,
        placed datetime(6) NOT NULL, FOREIGN KEY (customer) REFERENCES customers (id))""",
    f"""INSERT INTO customers (id, email)
        SELECT seq, concat(seq, '@example.com') FROM seq_1_to_{CUSTOMERS}""",
)
LOCK_SECONDS = 2
REFUSED = (1020, 1062, 1205, 1213)
"""Numbers of errors with which clients lose to each other: changed, duplicate, waited, deadlock."""


class ShopClient:
    """One client: a transaction after the other."""

    def __init__(self, number: int) -> None:
        self.commits = 0
        self._chance = random.Random(number)
        self._order = 0
        self._changes: tuple[Callable[[Any], None], ...] = (
            self._place_order,
            self._place_order,
            self._pay_order,
            self._welcome_customer,
            self._hand_on_email,
        )

    def run(self, server: MariaDbServer, stopped: threading.Event, pause_seconds: float) -> None:
        """Commits until it is stopped, with a pause after each transaction."""
        with server.connect(DATABASE) as session, session.cursor() as cursor:
            cursor.execute(f"SET innodb_lock_wait_timeout = {LOCK_SECONDS}")
            while not stopped.wait(pause_seconds):
                try:
                    self._chance.choice(self._changes)(cursor)
                    session.commit()
                    self.commits += 1
                except pymysql.err.MySQLError as error:
                    if error.args[0] not in REFUSED:
                        raise
                    session.rollback()

    def _customer(self) -> int:
        return self._chance.randint(1, CUSTOMERS)

    def _place_order(self, cursor: Any, customer: int = 0) -> None:
        customer, total = customer or self._customer(), self._chance.randint(1, 9_999) / 100
        cursor.execute(
            "INSERT INTO orders (customer, total, placed) VALUES (%s, %s, now(6))",
            (customer, total),
        )
        self._order = cursor.lastrowid
        cursor.execute(
            "UPDATE customers SET balance = balance - %s WHERE id = %s", (total, customer)
        )

    def _pay_order(self, cursor: Any) -> None:
        if not self._order:  # It is paid: nothing would change.
            self._place_order(cursor)
        cursor.execute("UPDATE orders SET state = 'paid' WHERE id = %s", (self._order,))
        self._order = 0

    def _welcome_customer(self, cursor: Any) -> None:
        """Makes parent and child in one transaction."""
        cursor.execute("INSERT INTO customers (email) VALUES (uuid())")
        self._place_order(cursor, cursor.lastrowid)

    def _hand_on_email(self, cursor: Any) -> None:
        """Moves a unique value from one row to another."""
        giver, taker = sorted((self._customer(), self._customer()))
        cursor.execute("SELECT email FROM customers WHERE id = %s FOR UPDATE", (giver,))
        ((email,),) = cursor.fetchall()
        for customer, value in ((giver, f"{giver}@moved"), (taker, email)):
            cursor.execute("UPDATE customers SET email = %s WHERE id = %s", (value, customer))


class ShopLoad:
    """All clients of the shop."""

    def __init__(self, server: MariaDbServer, clients: int) -> None:
        """Makes the tables, with some rows in them."""
        self._server = server
        self._clients = [ShopClient(number) for number in range(clients)]
        server.query(f"CREATE DATABASE {DATABASE}")
        for statement in SCHEMA:
            server.query(statement, DATABASE)

    @property
    def commits(self) -> int:
        """The number of commits until now."""
        return sum(client.commits for client in self._clients)

    @contextmanager
    def running(self, pause_seconds: float = 0.0) -> Iterator[None]:
        """Runs the clients within the block, each with a pause after a transaction. Raises what one
        of them did not expect.
        """
        stopped = threading.Event()
        with ThreadPoolExecutor(len(self._clients)) as pool:
            try:  # An interrupt may come before all of them run.
                tasks = [
                    pool.submit(client.run, self._server, stopped, pause_seconds)
                    for client in self._clients
                ]
                yield
            finally:
                stopped.set()
            for task in tasks:
                task.result()
