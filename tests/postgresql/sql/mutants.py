"""What is made wrong on purpose, so that tests see the generator find it.

A mutant's `change` runs at the start of each Python process: in the one that attaches tables and in
companions alike. Most of them are wrong in what `attach` makes at the servers: these may be tried
one after the other in one process, where companions are right.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import psycopg
from psycopg import sql

from groupcert.members.postgresql import attachment, functions, rows, tables
from tests.sources import ROOT

VARIABLE = "DRAWN_SQL_MUTANT"
FOLDER = ROOT / "tests" / "postgresql" / "sql" / "mutant"
"""Has a `sitecustomize.py`, which Python imports before anything else."""


class Mutant(NamedTuple):
    """A change, the seed that finds it, and what is in the kind of the problem that is found.

    `is_of_tables`: it is in what `attach` makes for each table; a group that runs may be used.
    """

    change: Callable[[], None]
    seed: int
    kind: str
    is_of_tables: bool = True


def without_deletions() -> None:
    """Has no transaction delete rows at other servers."""
    vars(rows)["Changes"].deletes = property(lambda changes: [])


def without_predicates() -> None:
    """Takes each row for an entry of each partial index, before and after."""
    entries = functions._entries

    def all_entries(table: tables.Table) -> object:
        unique_keys = tuple(each._replace(predicate="") for each in table.unique_keys)
        return entries(replace(table, unique_keys=unique_keys))

    vars(functions)["_entries"] = all_entries


def keys_by_name() -> None:
    """Reads the columns of indexes by their names in the index, which a renamed one keeps."""
    by_number = r"\(SELECT attname FROM pg_attribute WHERE .*?\n.*?place - 1\]\)"
    vars(tables)["_INDEXES"] = re.sub(by_number, "x.attname", tables._INDEXES)


def without_bounds() -> None:
    """Has arrays begin at 1, in tables that were not tried: a trial keeps such tables out."""
    json = functions._json

    def sliced(column: tables.Column) -> object:
        text = json(column).as_string(None)
        name = sql.Identifier("t", column.name).as_string(None)
        is_array = column.base_type.endswith("[]")
        return sql.SQL(text.replace(name, f"({name})[:]")) if is_array else sql.SQL(text)

    vars(functions)["_json"] = sliced
    without_rehearsal()


def without_rehearsal() -> None:
    """Attaches tables that were not tried."""
    vars(attachment)["rehearse"] = lambda *_: None


def rewritten(old: bytes, new: bytes) -> Callable[[], None]:
    """Returns a change of the SQL that is sent to servers, such as the scripts of `attach`: what
    matches a regular expression.
    """

    def change() -> None:
        execute = psycopg.Connection.execute

        def rewriting(self, query, *arguments, **named):  # type: ignore[no-untyped-def]  # any
            if isinstance(query, sql.Composable):
                query = query.as_bytes(None)
            if isinstance(query, bytes):
                query = re.sub(old, new, query, flags=re.DOTALL)
            return execute(self, query, *arguments, **named)

        psycopg.Connection.execute = rewriting  # type: ignore[method-assign]  # on purpose

    return change


MUTANTS: Mapping[str, Mutant] = {
    "array_bounds_lost": Mutant(without_bounds, 8, "rows differ"),
    "dates_as_sessions_write_them": Mutant(
        rewritten(rb"SET datestyle = 'ISO, YMD'", b""), 1652, "date/time field value"
    ),
    "executed_as_superuser": Mutant(
        rewritten(rb"^ALTER FUNCTION .* OWNER TO .*", b"SELECT"), 9, "rights grew"
    ),
    "items_without_predicate": Mutant(without_predicates, 272, "duplicate key value"),
    "keys_by_name": Mutant(keys_by_name, 7, "attach raises"),
    "note_outlives_savepoint": Mutant(
        rewritten(rb"number is not None and seals[^\n]*", b"number is not None"),
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
    "search_path_of_nobody": Mutant(without_rehearsal, 15, "does not exist"),
    "without_deletions": Mutant(without_deletions, 217, "rows differ", is_of_tables=False),
}


@contextmanager
def changed(name: str) -> Iterator[Mutant]:
    """Has this process alone wrong within the block."""
    kept = [(module, dict(vars(module))) for module in (attachment, functions, rows, tables)]
    execute = psycopg.Connection.execute
    try:
        MUTANTS[name].change()
        yield MUTANTS[name]
    finally:
        psycopg.Connection.execute = execute  # type: ignore[method-assign]  # as it was
        for module, values in kept:
            vars(module).update(values)


def environment_of(name: str) -> dict[str, str]:
    """Returns the environment in which every Python process is the mutant."""
    return {**os.environ, VARIABLE: name, "PYTHONPATH": f"{FOLDER}{os.pathsep}{ROOT}"}


def change_this_process() -> None:
    """Makes this process wrong, if its environment says how."""
    if name := os.environ.get(VARIABLE):
        MUTANTS[name].change()
