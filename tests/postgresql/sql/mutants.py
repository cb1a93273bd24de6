"""What is made wrong on purpose, so that tests see the generator find it.

A mutant's `change` runs at the start of each Python process: in the one that attaches tables and in
companions alike. One that is `as_it_is` names a fault which the tree has by itself: whoever mends
it puts in its place what brings it back.
"""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import psycopg

from groupcert.members.postgresql import companion, items
from groupcert.members.postgresql.rows import NotedRow
from groupcert.members.postgresql.tables import Table
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


def without_unique_values() -> None:
    """Certifies no values of unique indexes."""
    certified = items.key_items

    def key_items(noted: "list[NotedRow]", tables: Mapping[str, Table]) -> list[str]:
        return [text for text in certified(noted, tables) if "/referenced (" in text]

    vars(companion)["key_items"] = key_items


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


MUTANTS: Mapping[str, Mutant] = {
    "without_unique_values": Mutant(without_unique_values, 1, "duplicate key value"),
    "dates_as_sessions_write_them": Mutant(
        rewritten(b"SET datestyle = 'ISO, YMD'", b""), 1, "date/time"
    ),
}


def environment_of(name: str) -> dict[str, str]:
    """Returns the environment in which every Python process is the mutant."""
    return {**os.environ, VARIABLE: name, "PYTHONPATH": f"{FOLDER}{os.pathsep}{ROOT}"}


def change_this_process() -> None:
    """Makes this process wrong, if its environment says how."""
    if name := os.environ.get(VARIABLE):
        MUTANTS[name].change()
