"""The statement that executes transactions of others at a server.

The rule it keeps: entries that are executed in one transaction of the server leave the rows that
they would leave one after the other. What counts is the last change of each row: the rows that it
leaves are those of a state that all unique indexes have had.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple, TypeAlias

from .commit_order import Entry
from .functions import function_of
from .rows import key_of, rows_in, table_name
from .tables import Table

Statement: TypeAlias = tuple[bytes, Sequence[object]]
TableOf: TypeAlias = Callable[[str], Table | None]
"""Returns the attached table of a name; None: rows of that name are no table's."""
_WAIT = "groupcert.wait_for(%s)"
_EXECUTED = "groupcert.note_executed(%s, %s, %s, %s)"


class Batch(NamedTuple):
    """Entries that are executed in one transaction; `rows` is the last change of each row."""

    entries: Sequence[Entry]
    rows: Mapping[bytes, bytes | None]

    @property
    def tables(self) -> set[str]:
        """Full names of the tables that have rows in it."""
        return set(map(table_name, self.rows))


def batch_of(entries: Sequence[Entry]) -> Batch:
    """Returns entries as a batch. Raises InvalidWriteSet if one's parts are none."""
    return Batch(entries, dict(chain.from_iterable(rows_in(entry.parts) for entry in entries)))


def statement_of(batch: Batch, table_of: TableOf, after: str | None) -> Statement:
    """Returns the statement that executes a batch and notes its GTIDs, once the transaction `after`
    has committed, if there is one.

    Its functions are called one after the other. It calls nothing else: what code of a table's
    owner has left in the session, such as a search path, has no part in it.

    Raises:
        KeyError: A table is not attached here, or has other columns than its rows.
        ValueError: The key of a row is none of its table.
    """
    calls: list[str] = []
    values: list[object] = []
    if after is not None:
        calls.append(_WAIT)
        values.append(after)
    for table, puts, deletes in _by_table(batch.rows, table_of):
        calls.append(_put(table.full_name))
        values.append(f"[{b','.join(puts).decode()}]" if puts else None)
        values.append(json.dumps(deletes) if deletes else None)
    calls.append(_EXECUTED)
    gtids = [entry.gtid for entry in batch.entries]
    values.append([entry.version for entry in batch.entries])
    values += ([gtid.source for gtid in gtids], [gtid.number for gtid in gtids])
    values.append([entry.position for entry in batch.entries])
    return f"SELECT {', '.join(calls)}".encode(), values


@cache
def _put(table: str) -> str:
    name = function_of("put", table).replace("%", "%%")
    return f"{name}(%s, %s)"


def _by_table(
    rows: Mapping[bytes, bytes | None], table_of: TableOf
) -> list[tuple[Table, list[bytes], list[dict[str, str]]]]:
    """Returns for each table the values of rows that are put, and the keys of those deleted."""
    tables: dict[str, tuple[Table, list[bytes], list[dict[str, str]]] | None] = {}
    for key, value in rows.items():
        name = table_name(key)
        if name not in tables:
            table = table_of(name)
            tables[name] = None if table is None else (table, [], [])
        if (found := tables[name]) is None:
            continue
        table, puts, deletes = found
        if value is None:
            deletes.append(key_of(table, key))
            continue
        # The first row is enough: between two shapes of a table is a schema change, alone in its
        # turn.
        if not puts and json.loads(value).keys() != table.column_names:
            raise KeyError(f"table {name} has other columns here than a row of it")
        puts.append(value)
    return [each for each in tables.values() if each is not None]
