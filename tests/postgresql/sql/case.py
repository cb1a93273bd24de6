"""A case as values: what is made at each server, and what sessions do there one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

OWNERS = ("owner_a", 'Owner "B" 100%')
"""Roles that own a schema each, and its tables."""
CLIENTS = ("client_a", "client_b")
ROLES = (*OWNERS, *CLIENTS)
"""All may log in, none is a superuser; `client_b` may become the first owner."""
SUPERUSER = "postgres"
MARKS = "marks"
"""The table of transactions' ids, in the first schema of a case."""


class Definition(NamedTuple):
    """A statement by which a role makes something at all servers; one that fails is left out."""

    role: str
    sql: str


class Session(NamedTuple):
    """Who connects to which server."""

    server: int
    role: str


class Step(NamedTuple):
    """One statement of a session, or "" where `kind` says it all.

    `mark` inserts the id `argument`; `copy` sends the rows `argument`; `savepoint`, `rollback_to`
    and `release` have the name there, `prepare` and `prepared` that of the transaction. `settle`
    waits until all servers are equal, `cancel` cancels what the session runs.
    """

    session: int
    transaction: int
    kind: str
    sql: str = ""
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """What one seed draws; a part of it that is run alone keeps the rest as it was."""

    seed: int
    schemas: tuple[str, ...]
    preamble: tuple[Definition, ...]
    """What every part of it needs."""
    definitions: tuple[Definition, ...]
    sessions: tuple[Session, ...]
    steps: tuple[Step, ...]

    @property
    def patterns(self) -> list[str]:
        """Of its tables, for `attach`."""
        return [f"{schema}.*" for schema in self.schemas]

    def with_parts(
        self, definitions: Sequence[Definition] | None = None, steps: Sequence[Step] | None = None
    ) -> "Case":
        """Returns the case with fewer parts."""
        return replace(
            self,
            definitions=self.definitions if definitions is None else tuple(definitions),
            steps=self.steps if steps is None else tuple(steps),
        )

    def lines(self) -> Iterator[str]:
        """Yields the case as a reader follows it, without the schemas and the table of marks: each
        owner has a schema, in which everybody may do everything to its tables.
        """
        for role, sql in self.definitions:
            yield f"{role}: {sql}"
        for step in self.steps:
            server, role = self.sessions[step.session]
            argument = f" [{step.argument}]" if step.argument else ""
            yield f"{server + 1}/{role}/{step.session}: {step.sql or step.kind}{argument}"
