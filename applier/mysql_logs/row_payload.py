"""Stand-in."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from .source_catalogue import SourceTable


class RowKind(Enum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class TableRows(NamedTuple):
    table: SourceTable
    kind: RowKind
    before: Sequence[int] | None
    after: Sequence[int] | None
    rows: list
