"""What is made wrong on purpose, so that tests see the generator find it.

A mutant's `change` runs at the start of each Python process: in the one that attaches tables and in
companions alike. One that is `as_it_is` names a fault which the tree has by itself: whoever mends
it puts in its place what brings it back.
"""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import psycopg

from groupcert.members.postgresql import rows
from tests.sources import ROOT

VARIABLE = "DRAWN_SQL_MUTANT"
FOLDER = ROOT / "tests" / "postgresql" / "sql" / "mutant"
"""Has a `sitecustomize.py`, which Python imports before anything else."""


class Mutant(NamedTuple):
    """A change, the seed that finds it, and what begins the kind of the problem that is found."""

    change: Callable[[], None]
    seed: int
    kind: str


def as_it_is() -> None:
    """Changes nothing: the tree is wrong so."""


def without_deletions() -> None:
    """Has no transaction delete rows at other servers."""
    vars(rows)["Changes"].deletes = property(lambda changes: [])


def rewritten(old: bytes, new: bytes) -> Callable[[], None]:
    """Returns a change of the SQL that is sent to servers, such as the scripts of `attach`."""

    def change() -> None:
        execute = psycopg.Connection.execute

        def rewriting(self, query, *arguments, **named):  # type: ignore[no-untyped-def]  # any
            if isinstance(query, bytes):
                query = query.replace(old, new)
            return execute(self, query, *arguments, **named)

        psycopg.Connection.execute = rewriting  # type: ignore[method-assign]  # on purpose

    return change


DATES = b"SET datestyle = 'ISO, YMD'"
MUTANTS: Mapping[str, Mutant] = {
    "dates_as_sessions_write_them": Mutant(rewritten(DATES, b""), 394, "date/time field value"),
    "without_deletions": Mutant(without_deletions, 217, "rows differ"),
    # What the tree has by itself.
    "array_bounds_lost": Mutant(as_it_is, 8, "rows differ"),
    "executed_as_superuser": Mutant(as_it_is, 9, "rights grew"),
    "items_without_predicate": Mutant(as_it_is, 272, "duplicate key value"),
    "keys_by_name": Mutant(as_it_is, 188, "KeyError"),
    "note_outlives_savepoint": Mutant(as_it_is, 253, "rows differ"),
    "numeric_keys_normalized": Mutant(as_it_is, 211, "rows differ"),
    "prepared_by_comment": Mutant(as_it_is, 17, "a failed transaction is there"),
    "search_path_of_nobody": Mutant(as_it_is, 15, "does not exist"),
}


def environment_of(name: str) -> dict[str, str]:
    """Returns the environment in which every Python process is the mutant."""
    return {**os.environ, VARIABLE: name, "PYTHONPATH": f"{FOLDER}{os.pathsep}{ROOT}"}


def change_this_process() -> None:
    """Makes this process wrong, if its environment says how."""
    if name := os.environ.get(VARIABLE):
        MUTANTS[name].change()
