"""What is made wrong on purpose, so that tests see the generator find it.

A mutant is installed at the start of each Python process: in the one that attaches tables and in
members alike. Most of them are wrong in what `attach` makes at the servers: these may be tried
one after the other in one process, where members are right.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg
from psycopg import sql

from groupcert.members.postgresql import attachment, functions, statements, tables
from tests.laboratory.mutants import Install


class Mutant(NamedTuple):
    """How it is installed, the seed that finds it, and what is in the kind of the problem.

    `is_of_tables`: it is in what `attach` makes for each table; a group that runs may be used.
    """

    install: Install
    seed: int
    kind: str
    is_of_tables: bool = True


_entries, _carried, _by_table = functions._entries, functions._carried, statements._by_table
_BY_NUMBER = r"\(SELECT attname FROM pg_attribute WHERE .*?\n.*?place - 1\]\)"


def without_predicates(table: tables.Table) -> object:
    """Takes each row for an entry of each partial index, before and after."""
    unique_keys = tuple(each._replace(predicate="") for each in table.unique_keys)
    return _entries(replace(table, unique_keys=unique_keys))


def sliced(column: tables.Column) -> str:
    """Has arrays begin at 1."""
    name = f"t.{column.quoted}"
    text = _carried(column)
    return text.replace(name, f"({name})[:]") if column.base_type.endswith("[]") else text


def without_deletions(*arguments: Any) -> object:
    """Has no transaction delete rows at other servers."""
    return [(table, puts, []) for table, puts, _ in _by_table(*arguments)]


@contextmanager
def without_bounds() -> Iterator[None]:
    """Has arrays begin at 1, in tables that were not tried: a trial keeps such tables out."""
    with patch.object(functions, "_carried", sliced), without_rehearsal():
        yield


@contextmanager
def without_refusals() -> Iterator[None]:
    """Has sessions commit rows that other servers refuse, in tables that were not tried."""
    with patch.object(functions, "_refusal", lambda _: ""), without_rehearsal():
        yield


def without_rehearsal() -> AbstractContextManager[object]:
    """Attaches tables that were not tried."""
    return patch.object(attachment, "rehearse", lambda *_: None)


def rewritten(old: bytes, new: bytes) -> Install:
    """Returns a change of the SQL that is sent to servers, such as the scripts of `attach`: what
    matches a regular expression.
    """
    execute = psycopg.Connection.execute

    def rewriting(self, query, *arguments, **named):  # type: ignore[no-untyped-def]  # any
        if isinstance(query, sql.Composable):
            query = query.as_bytes(None)
        if isinstance(query, bytes):
            query = re.sub(old, new, query, flags=re.DOTALL)
        return execute(self, query, *arguments, **named)

    return lambda: patch.object(psycopg.Connection, "execute", rewriting)


MUTANTS: Mapping[str, Mutant] = {
    "array_bounds_lost": Mutant(without_bounds, 8, "rows differ"),
    "dates_as_sessions_write_them": Mutant(
        rewritten(rb"SET datestyle = 'ISO, YMD'", b""), 1652, "date/time field value"
    ),
    "executed_as_superuser": Mutant(
        rewritten(rb"^ALTER FUNCTION .* OWNER TO .*", b"SELECT"), 9, "rights grew"
    ),
    "items_without_predicate": Mutant(
        lambda: patch.object(functions, "_entries", without_predicates), 272, "duplicate key value"
    ),
    "keys_by_name": Mutant(
        # Columns of indexes by their names in the index, which a renamed one keeps.
        lambda: patch.object(tables, "_INDEXES", re.sub(_BY_NUMBER, "x.attname", tables._INDEXES)),
        7,
        "attach raises",
    ),
    "note_outlives_savepoint": Mutant(
        rewritten(rb"number is not None and FIND_SEAL[^\n]*", b"number is not None"),
        11,
        "rows differ",
        is_of_tables=False,
    ),
    "numeric_keys_normalized": Mutant(
        rewritten(rb"trim_scale\((\([^()]*\))\)", rb"trim_scale(\1::float8::numeric)"),
        71,
        "rows differ",
    ),
    "prepared_by_comment": Mutant(
        rewritten(rb'if "prepare" in query.lower\(\) and[^\n]*', b"if False:"),
        17,
        "a failed transaction is there",
        is_of_tables=False,
    ),
    "search_path_of_nobody": Mutant(without_refusals, 15, "does not exist"),
    "without_deletions": Mutant(
        lambda: patch.object(statements, "_by_table", without_deletions),
        217,
        "rows differ",
        is_of_tables=False,
    ),
}
