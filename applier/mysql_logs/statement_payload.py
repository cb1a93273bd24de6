"""Payloads that are statements: data definition, which a target executes or stops at, by name, and
steps of XA transactions.

A payload is either rows (`row_payload`), statements or a step of an XA transaction
(`prepared_payload`); its first byte says which. Statements that
change no table are left out: users, rights, views, routines and triggers are no rows.

Source: MySQL Reference Manual, 15.1 "Data Definition Statements"; 15.3.3, statements that commit.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from .binary_log_reader import BinaryLogTransaction, LoggedStatement
from .events import EventType
from .prepared_payload import PreparedStep, is_prepared_step
from .transaction_bounds import first_words

_STATEMENTS = bytes([EventType.QUERY])
_CHANGING = ("CREATE", "ALTER", "DROP", "RENAME")
_ADMINISTRATION = ("GRANT", "REVOKE", "FLUSH", "ANALYZE", "OPTIMIZE", "REPAIR", "SET")
_TABLES = ("TABLE", "INDEX")
_NO_TABLES = tuple(
    "USER ROLE VIEW PROCEDURE FUNCTION PACKAGE TRIGGER EVENT SERVER TEMPORARY".split()
)
_OTHERS = ("DATABASE", "SCHEMA", "SEQUENCE", "TABLESPACE")
_WORDS_MAX = 16
"""Words in which a statement says what it changes, after the name of a view's definer, too."""


class PayloadStatement(NamedTuple):
    """A statement to execute with `database` as the default one; `is_table`: it defines a table,
    and may be executed elsewhere; `is_skipped`: it is not executed, as its operator has seen to it.
    """

    text: str
    database: str
    is_table: bool
    is_skipped: bool = False


def is_left_out(text: str) -> bool:
    """Returns whether a statement changes no table.

    >>> is_left_out("GRANT ALL ON a.* TO b"), is_left_out("CREATE DEFINER=a@b VIEW v AS SELECT 1")
    (True, True)
    >>> is_left_out("ALTER TABLE t ADD c int")
    False
    """
    return _subject(text) in (*_ADMINISTRATION, *_NO_TABLES)


def is_definition(text: str) -> bool:
    """Returns whether a statement may change what a table is; one that empties it does not.

    >>> is_definition("/* night */ ALTER TABLE t ADD c int"), is_definition("TRUNCATE TABLE t")
    (True, False)
    """
    return next(iter(first_words(text, 1)), "") in _CHANGING


def payload_of(transaction: BinaryLogTransaction) -> bytes:
    """Returns the payload of a transaction's entry: its statements or its step of an XA
    transaction, or else its rows.

    One that has both, such as CREATE TABLE ... SELECT, is none that may be executed elsewhere.
    """
    statements = [each for each in transaction.statements if not is_left_out(each.text)]
    if not statements:
        return transaction.payload
    if step := PreparedStep.of(statements[-1].text, transaction.payload):
        return step.encode()
    has_rows = bool(transaction.payload)
    listed = [[each.text, each.database, _is_table(each, has_rows)] for each in statements]
    return _STATEMENTS + json.dumps(listed).encode()


def has_statements(payload: bytes) -> bool:
    """Returns whether a payload is no rows, and so a job of its own."""
    return payload.startswith(_STATEMENTS) or is_prepared_step(payload)


def statements_of(payload: bytes) -> Sequence[PayloadStatement]:
    """Returns the statements of a payload; none if it is rows, or a step of an XA transaction."""
    if not payload.startswith(_STATEMENTS):
        return ()
    return [PayloadStatement(*each) for each in json.loads(payload[1:])]


def skipped(payload: bytes) -> bytes:
    """Returns the payload of a transaction that is to count as executed, without its changes: what
    it defines is to be known all the same.
    """
    listed = [each._replace(is_skipped=True) for each in statements_of(payload)]
    return _STATEMENTS + json.dumps(listed).encode() if listed else b""


def _is_table(statement: LoggedStatement, has_rows: bool) -> bool:
    return statement.is_ddl and not has_rows and _subject(statement.text) in _TABLES


def _subject(text: str) -> str:
    """Returns the kind of thing that a statement defines, or its first word."""
    first, *words = [*first_words(text, _WORDS_MAX), ""]
    if first == "TRUNCATE":
        return "TABLE"
    if first not in _CHANGING:
        return first
    kinds = (*_TABLES, *_NO_TABLES, *_OTHERS)
    return next((word for word in words if word in kinds), first)
