"""Compares the rows of a group's servers, while clients write: `groupcert postgresql verify`.

A snapshot of a server is a prefix of the total order, and says which. So digests of a table in two
snapshots of one version have to be equal; no clock and no lock has a part in it. Servers do not
show each version, as others' transactions come in batches: it tries until all have shown one.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from ...certifier.errors import NotServing
from .attachment import is_attached, name_of, opened, unsuitable
from .tables import Table, attached_tables

SNAPSHOTS_MAX = 32
"""Snapshots that are held at each server until all have one of the same version."""
PAUSE_SECONDS = 0.01
_VERSION = "SELECT coalesce(max(version), 0) FROM groupcert.executed"
Connection = psycopg.Connection[Any]


class Verified(NamedTuple):
    """The version at which rows were compared, and the names of servers by the tables in which they
    differ from the first.
    """

    version: int
    tables: list[str]
    different: dict[str, list[str]]


def verify(
    dsns: Sequence[str], *, seconds: float, show: Callable[[int], None] = lambda done: None
) -> Verified:
    """Compares all tables that are attached at the first server, and notes that servers no longer
    differ if they do not.

    Args:
        seconds: How long servers may take to show a version that is the same.
        show: Is called with the number of tables that are done.

    Raises:
        NotServing: A server does not answer, or they show no version that is the same.
        UnsuitableTarget: Nothing is attached, or a table is not attached at all of them.
    """
    with ExitStack() as stack:
        version, snapshots = _snapshots(stack, dsns, seconds)
        tables = [attached_tables(snapshot) for snapshot in snapshots]
        for dsn, attached in zip(dsns, tables, strict=True):
            if missing := tables[0].keys() ^ attached.keys():
                problem = f"{', '.join(sorted(missing))} is attached at one of them alone"
                raise unsuitable(dsn, problem, f"the tables of {name_of(dsns[0])}")
        different: dict[str, list[str]] = {}
        for done, (name, table) in enumerate(tables[0].items(), 1):
            first, *others = (_digest(snapshot, table) for snapshot in snapshots)
            for dsn, digest in zip(dsns[1:], others, strict=True):
                if digest != first:
                    different.setdefault(name, []).append(name_of(dsn))
            show(done)
    if not different:
        for dsn in dsns:
            with opened(dsn) as connection:
                connection.execute(
                    "UPDATE groupcert.skipped SET verified_at = clock_timestamp()"
                    " WHERE verified_at IS NULL AND version <= %s",
                    (version,),
                )
    return Verified(version, [*tables[0]], different)


def _snapshots(
    stack: ExitStack, dsns: Sequence[str], seconds: float
) -> tuple[int, list[Connection]]:
    """Returns a version, and a session of each server that sees it."""
    deadline = time.monotonic() + seconds
    held: list[dict[int, Connection]] = [{} for _ in dsns]
    while True:
        for dsn, snapshots in zip(dsns, held, strict=True):
            connection = stack.enter_context(opened(dsn))
            if not is_attached(connection):
                raise unsuitable(dsn, "nothing is attached", "a server of the group")
            connection.rollback()
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            ((version,),) = connection.execute(_VERSION).fetchall()
            if version in snapshots:
                connection.rollback()
            else:
                snapshots[version] = connection
            if len(snapshots) > SNAPSHOTS_MAX:
                snapshots.pop(min(snapshots)).rollback()
        if common := set.intersection(*map(set, held)):
            version = max(common)
            return version, [snapshots[version] for snapshots in held]
        if time.monotonic() > deadline:
            newest = ", ".join(f"{name_of(d)} {max(s)}" for d, s in zip(dsns, held, strict=True))
            state = f"without a version that all have shown within {seconds:.0f} s ({newest})"
            raise NotServing(member="the group", state=state)
        time.sleep(PAUSE_SECONDS)


def _digest(connection: Connection, table: Table) -> tuple[Any, ...]:
    """Returns the number of rows and the sum of their digests, in whatever order they are."""
    connection.execute(
        "SET LOCAL datestyle TO 'ISO, YMD'; SET LOCAL intervalstyle TO 'postgres';"
        " SET LOCAL timezone TO 'UTC'; SET LOCAL bytea_output TO 'hex';"
        " SET LOCAL extra_float_digits TO 1; SET LOCAL search_path TO pg_catalog, pg_temp"
    )
    columns = sql.SQL(", ").join(
        sql.Identifier("t", column) for column in sorted(table.column_names)
    )
    query = sql.SQL(
        "SELECT count(*), sum(('x' || left(md5(format('%s', ROW({}))), 16))::bit(64)::bigint)"
        " FROM {} t"
    ).format(columns, sql.Identifier(table.schema, table.name))
    ((count, total),) = connection.execute(query).fetchall()
    return count, total
