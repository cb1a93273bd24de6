"""Databases for tests, in real SQL servers.

The rule it keeps: nothing of a test's database is left when its block ends.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pymysql
import pytest

from groupcert.applier.errors import UnsuitableTarget
from groupcert.members.host.mariadb_server import MARIADB_USER, MariaDbServer
from groupcert.members.host.postgresql_server import PostgreSqlServer, postgresql_program
from groupcert.members.host.servers import ServerMissing

__all__ = [
    "PREPARING",
    "MariaDbServer",
    "PostgreSqlServer",
    "ServerMissing",
    "connect_mariadb",
    "mariadb_database",
    "postgresql_database",
    "postgresql_program",
    "where_installed",
]

PREPARING = "max_prepared_transactions=64"
"""What a target of a replica needs, and a server of a group must not have."""


def connect_mariadb(url: str) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    """Opens a session of the user `root`; each statement commits."""
    address, _, database = url.rpartition("@")[2].partition("/")
    host, _, port = address.partition(":")
    return pymysql.connect(
        host=host, port=int(port), user=MARIADB_USER, database=database or None, autocommit=True
    )


@contextmanager
def where_installed() -> Iterator[None]:
    """Skips a test whose server is not on this machine, or cannot do what it has to.

    `REQUIRE_DATABASES=1`, where they are installed for the tests, makes a failure of it.
    """
    try:
        yield
    except (ServerMissing, UnsuitableTarget) as error:
        if os.environ.get("REQUIRE_DATABASES") == "1":
            raise
        pytest.skip(str(error))


@contextmanager
def postgresql_database(server: PostgreSqlServer, name: str) -> Iterator[str]:
    """A database that is gone afterwards, whoever is still connected to it."""
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute(f'CREATE DATABASE "{name}"'.encode())
        yield server.dsn_of(name)
        with psycopg.connect(server.dsn_of(name), autocommit=True) as inside:
            for (transaction,) in inside.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            ):
                inside.execute(f"ROLLBACK PREPARED '{transaction}'".encode())
        session.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@contextmanager
def mariadb_database(server: MariaDbServer, name: str) -> Iterator[str]:
    """A database that is gone afterwards, with every branch that is prepared at the server: one
    that nobody settled would keep it for ever.
    """
    with closing(connect_mariadb(server.url)) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{name}`")
        yield server.url_of(name)
        cursor.execute("XA RECOVER FORMAT='SQL'")
        for *_, branch in cursor.fetchall():
            cursor.execute(f"XA ROLLBACK {branch}")
        cursor.execute(f"DROP DATABASE `{name}`")
