"""What a source's catalogue says of its tables: names, types and keys that its log leaves out.

A log with its server's defaults (binlog_row_metadata MINIMAL, or MariaDB's NO_LOG) has columns by
number and no keys, so a replica asks the server. Columns are in the order of the table maps.

Source: information_schema of MySQL 5.7 to 9 and MariaDB 10.3 to 12: columns, statistics,
key_column_usage, referential_constraints.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A column. `data_type`, `column_type`: as information_schema spells them, in lower case:
    `int` and `int(10) unsigned`, `enum` and `enum('a','b')`. `charset`, `collation`: None unless it
    is a text. `default`: as the catalogue has it. `generated`: empty, `virtual` or `stored`.
    """

    name: str
    data_type: str
    column_type: str
    charset: str | None = None
    collation: str | None = None
    nullable: bool = True
    default: str | None = None
    generated: str = ""
    auto_increment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A foreign key: `columns` of this table refer to `parent_columns` of `parent`, which is
    `database.table`. `on_delete`, `on_update`: `RESTRICT`, `CASCADE`, `SET NULL`, `NO ACTION`.
    """

    name: str
    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]
    on_delete: str = "RESTRICT"
    on_update: str = "RESTRICT"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table; `unique_keys`: by index, without the primary key. A key over an expression, or over
    the beginnings of texts, is in `inexact_keys` alone.
    """

    database: str
    name: str
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...] = ()
    unique_keys: Mapping[str, tuple[str, ...]]
    inexact_keys: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"
