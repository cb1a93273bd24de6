"""What a client of a server knows of its transaction."""

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

import psycopg

Connection: TypeAlias = "psycopg.Connection[Any]"

NOT_COMMITTED = frozenset(("40001", "40P01", "25006", "57014"))
"""SQLSTATEs by which a COMMIT says that nothing was committed; others leave it open."""


class Told(StrEnum):
    """What became of a transaction, as far as its client can tell."""

    COMMITTED = "committed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Answer(NamedTuple):
    """What a client was told, with the SQLSTATE; "" is success, or a lost connection."""

    told: Told
    sqlstate: str = ""


def transact(connection: Connection, work: Callable[[Connection], None]) -> Answer:
    """Does the work in a transaction and commits it."""
    try:
        work(connection)
    except psycopg.Error as error:
        return _failed(connection, Told.REFUSED, error)
    try:
        connection.commit()
    except psycopg.Error as error:
        told = Told.REFUSED if error.sqlstate in NOT_COMMITTED else Told.UNKNOWN
        return _failed(connection, told, error)
    return Answer(Told.COMMITTED)


def _failed(connection: Connection, told: Told, error: psycopg.Error) -> Answer:
    with suppress(psycopg.Error):
        connection.rollback()
    return Answer(told, error.sqlstate or "")
