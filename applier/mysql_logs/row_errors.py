"""Errors of rows that do not fit what is known of their table, for `applier/errors.py`'s tree.

InvalidRequest
├── SourceTableChanged        SOURCE_TABLE_CHANGED
└── UnknownSourceTable        UNKNOWN_SOURCE_TABLE
Fenced
└── UnreadableValue           UNREADABLE_VALUE
"""

from ...certifier.errors import Fenced, InvalidRequest


class SourceTableChanged(InvalidRequest):
    """A log has other columns of a table than the source's catalogue had."""

    message = (
        "table {table} has {logged} in the log and {described} in the catalogue of its source: "
        "look it up again as it was at that place of the log"
    )
    table: str
    logged: str
    described: str


class UnknownSourceTable(InvalidRequest):
    """A log has rows of a table that the source's catalogue does not have."""

    message = "table {table} is not in the catalogue of its source: look it up again"
    table: str


class UnreadableValue(Fenced):
    """A value of a row cannot be read; the replica has stopped before it, and lost nothing."""

    message = (
        "column {column} of {table}, of type {type}, has a value that cannot be read: {cause}; "
        "change the column's type at the source, or leave the transaction out"
    )
    table: str
    column: str
    type: str
    cause: str
