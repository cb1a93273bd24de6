"""Databases for tests, in real SQL servers that `members/host/database_servers.py` starts.

The rule it keeps: nothing of a test's database is left when its block ends.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg

from groupcert.members.host.database_servers import (
    PREPARING,
    MariaDbServer,
    PostgreSqlServer,
    connect_mariadb,
    mariadb_server,
    postgresql_program,
    postgresql_server,
)
from groupcert.members.host.server_missing import ServerMissing

__all__ = [
    "PREPARING",
    "MariaDbServer",
    "PostgreSqlServer",
    "ServerMissing",
    "connect_mariadb",
    "mariadb_database",
    "mariadb_server",
    "postgresql_database",
    "postgresql_program",
    "postgresql_server",
]


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
