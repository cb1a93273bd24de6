"""Statements in a log: where transactions begin and end, and which change data without row events.

A statement that is not known to change nothing may have changed any row.

Source: MySQL 8.4 source documentation of Query_event (status variables, exec_time); WL#5569 for the
names of the databases that a statement updates, which MySQL writes with it.
"""

import re
from enum import Enum
from typing import NamedTuple

from .compression import inflated
from .cursor import Cursor
from .events import Event, EventType

_DML = {
    *("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "DO", "SELECT", "WITH", "MERGE"),
    *("VALUES", "EXECUTE"),
}
# Not of the comments that begin with /*! or /*M: servers execute their content.
_LEADING = re.compile(r"(?:\s+|/\*[^!M].*?\*/|--\s[^\n]*\n|#[^\n]*\n)*", re.S)
_WORDS = re.compile(r"[A-Za-z_]+")
_DATABASES_OVER_MAX = 254
_MICROSECONDS = 13
_UPDATED_DATABASES = 12
_STATUS_BYTES = {
    **dict.fromkeys((16, 19, 20), 1),
    **dict.fromkeys((7, 8, 18), 2),
    **dict.fromkeys((_MICROSECONDS, 128), 3),
    **dict.fromkeys((0, 3, 10), 4),
    4: 6,
    **dict.fromkeys((1, 9, 17, 129), 8),
}
_STATUS_TEXTS = {2: (1, 1), 5: (1, 0), 6: (1, 0), 11: (2, 0)}


class StatementKind(Enum):
    """The meaning of a statement for its transaction."""

    BEGIN = "begin"
    END = "end"
    XA_END = "xa end"
    NOTHING = "nothing"
    CHANGE = "change"


class Statement(NamedTuple):
    """A statement as logged; `databases`: those that it updates, None if they are not known."""

    kind: StatementKind
    is_ddl: bool
    databases: tuple[str, ...] | None
    began_us: int
    duration_us: int


def read_statement(event: Event) -> Statement:
    """Returns the statement of a query event.

    Raises:
        InvalidBinaryLog: it is no query event.
    """
    cursor = Cursor(event)
    cursor.take(4)
    seconds, database_bytes = cursor.uint(4), cursor.uint(1)
    cursor.take(2)
    status_bytes = cursor.uint(2)
    if event.type == EventType.EXECUTE_LOAD_QUERY:
        cursor.take(13)
    microseconds, databases = _status(Cursor(event, cursor.take(status_bytes)))
    cursor.take(database_bytes + 1)
    content = cursor.rest()
    if event.type == EventType.MARIADB_QUERY_COMPRESSED:
        content = inflated(event, content)
    kind, is_ddl = classify(content.decode("utf-8", "replace"))
    began_us = event.timestamp * 1_000_000 + microseconds
    return Statement(kind, is_ddl, databases, began_us, seconds * 1_000_000)


def classify(text: str) -> tuple[StatementKind, bool]:
    """Returns the kind of a statement, and whether it is data definition or administration.

    >>> classify("BEGIN")[0].value, classify("XA COMMIT X'61',X'',1")[0].value
    ('begin', 'xa end')
    >>> classify("/* app */ create table t (a int)")[1], classify("insert into t values (1)")[1]
    (True, False)
    """
    start = _LEADING.match(text)
    words = [word.upper() for word in _WORDS.findall(text[start.end() if start else 0 :][:256])]
    first, second = (*words, "", "")[:2]
    alone = len(words) == 1
    if (first == "BEGIN" and alone) or (first, second) in {("XA", "START"), ("XA", "BEGIN")}:
        return StatementKind.BEGIN, False
    if first in ("COMMIT", "ROLLBACK") and alone:
        return StatementKind.END, False
    if first == "XA" and second in ("COMMIT", "ROLLBACK"):
        return StatementKind.XA_END, False
    if first in ("SAVEPOINT", "RELEASE") or (first, second) in {("ROLLBACK", "TO"), ("XA", "END")}:
        return StatementKind.NOTHING, False
    return StatementKind.CHANGE, first not in _DML


def _status(cursor: Cursor) -> tuple[int, tuple[str, ...] | None]:
    """Returns the microseconds of the begin and the databases, from the status variables.

    An unknown variable has an unknown length: those after it are not read.
    """
    microseconds, databases = 0, None
    while cursor.remaining:
        code = cursor.uint(1)
        if code == _MICROSECONDS:
            microseconds = cursor.uint(3)
        elif code == _UPDATED_DATABASES:
            count = cursor.uint(1)
            if count < _DATABASES_OVER_MAX:
                databases = tuple(sorted({_zero_ended(cursor) for _ in range(count)}))
        elif code in _STATUS_TEXTS:
            texts, zeros = _STATUS_TEXTS[code]
            for _ in range(texts):
                cursor.take(cursor.uint(1) + zeros)
        elif code in _STATUS_BYTES:
            cursor.take(_STATUS_BYTES[code])
        else:
            break
    return microseconds, databases


def _zero_ended(cursor: Cursor) -> str:
    name = bytearray()
    while byte := cursor.uint(1):
        name.append(byte)
    return name.decode("utf-8", "replace")
