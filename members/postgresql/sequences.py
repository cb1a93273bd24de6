"""Sequences of attached tables: each server of a group gives numbers that no other one gives.

Without this two servers give one number to two rows, of which one fails. A sequence that counts in
steps of S from A on counts in steps of S * increment at each server, from A + S * (offset - 1) on:
1, 4, 7 at the first of three servers, 2, 5, 8 at the second. Blocks of numbers (`INCREMENT BY 50`,
as object mappers take them) stay whole, and sequences that count down do so.

Source: MySQL's `auto_increment_offset` and `auto_increment_increment`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import psycopg
from psycopg.rows import class_row

from ...certifier.errors import InvalidSetting
from .tables import matches, quoted

INCREMENT_MAX = 65_535
"""As MySQL has it."""
_INTEGERS = ("smallint", "integer", "bigint")
_SEQUENCES = """
WITH users AS (
    SELECT d.objid AS sequence, d.refobjid AS relation, d.refobjsubid AS number FROM pg_depend d
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
      AND d.deptype IN ('a', 'i') AND d.refobjsubid > 0
    UNION
    SELECT d.refobjid, f.adrelid, f.adnum FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid
    WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass
)
SELECT n.nspname AS schema, c.relname AS name, s.seqstart AS start,
       coalesce(k.step, s.seqincrement) AS step, s.seqmin AS smallest, s.seqmax AS largest,
       s.seqcycle AS cycles, k.step IS NOT NULL AS is_numbered, coalesce(
           (SELECT jsonb_agg(jsonb_build_array(m.nspname, t.relname, a.attname,
                                               format_type(a.atttypid, NULL)))
            FROM users u JOIN pg_class t ON t.oid = u.relation
            JOIN pg_namespace m ON m.oid = t.relnamespace
            JOIN pg_attribute a ON a.attrelid = u.relation AND a.attnum = u.number
            WHERE u.sequence = c.oid), '[]') AS columns
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN groupcert.sequences k ON k.sequence = c.oid
WHERE c.relpersistence <> 't' ORDER BY 1, 2"""


class Numbering(NamedTuple):
    """The numbers that a server's sequences give: each `increment`-th, from the `offset`-th on."""

    offset: int
    increment: int

    @classmethod
    def checked(cls, offset: int | None, increment: int | None) -> Self | None:
        """Returns the numbering of two flags; None if neither is given.

        Raises:
            InvalidSetting: One is missing, or not `1 <= offset <= increment <= INCREMENT_MAX`.
        """
        if offset is None and increment is None:
            return None
        if increment is None or not 1 <= increment <= INCREMENT_MAX:
            raise InvalidSetting(
                name="--sequence-increment",
                value="" if increment is None else increment,
                expected=f"the servers that the group may ever have, 1 to {INCREMENT_MAX:,}",
            )
        if offset is None or not 1 <= offset <= increment:
            raise InvalidSetting(
                name="--sequence-offset",
                value="" if offset is None else offset,
                expected=f"this server's own number, 1 to --sequence-increment {increment}",
            )
        return cls(offset, increment)


AS_ONE = Numbering(1, 1)
"""All numbers, as a server without others gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberSequence:
    """A sequence; `step` is its own, `columns` are [schema, table, column, type] that it fills."""

    schema: str
    name: str
    start: int
    step: int
    smallest: int
    largest: int
    cycles: bool
    is_numbered: bool
    columns: list[list[str]]

    @property
    def full_name(self) -> str:
        """`schema.sequence`."""
        return f"{self.schema}.{self.name}"

    @property
    def tables(self) -> set[str]:
        """The full names of the tables that it gives numbers to."""
        return {f"{schema}.{table}" for schema, table, _, _ in self.columns}

    def next_number(self, free: int, numbering: Numbering) -> int:
        """Returns the first number of a numbering that is `free` or lies behind it.

        >>> NumberSequence(schema="public", name="s", start=1, step=1, smallest=1, largest=99,
        ...     cycles=False, is_numbered=False, columns=[]).next_number(7, Numbering(2, 3))
        8
        """
        first = self.start + self.step * (numbering.offset - 1)
        stride = self.step * numbering.increment
        # Floored, so that it goes from `free` in the direction of counting, for either sign of the
        # stride.
        return first - (first - free) // stride * stride


def read_sequences(connection: "psycopg.Connection[Any]") -> list[NumberSequence]:
    """Returns all sequences of an attached server."""
    cursor = connection.cursor(row_factory=class_row(NumberSequence))
    return cursor.execute(_SEQUENCES).fetchall()


def sequences_for(
    sequences: Sequence[NumberSequence], tables: Collection[str], patterns: Sequence[str]
) -> list[NumberSequence]:
    """Returns the sequences that give numbers to some of the tables, and those that give them to
    no table but match a pattern: object mappers ask such by their names.
    """
    return [
        sequence
        for sequence in sequences
        if sequence.tables & {*tables}
        or (not sequence.columns and matches(sequence.full_name, patterns))
    ]


def numbering_of(connection: "psycopg.Connection[Any]") -> Numbering | None:
    """Returns the numbering of an attached server; None if its sequences are as they were."""
    row = connection.execute(
        "SELECT sequence_offset, sequence_increment FROM groupcert.settings"
    ).fetchone()
    return Numbering(*row) if row and row[0] is not None else None


def number_sequences(
    connection: "psycopg.Connection[Any]",
    sequences: Sequence[NumberSequence],
    numbering: Numbering,
) -> dict[str, int]:
    """Has sequences give a server's own numbers from now on; returns the next one of each.

    Raises:
        InvalidSetting: One begins anew at its end, or has no such number left.
    """
    connection.execute(
        "UPDATE groupcert.settings SET sequence_offset = %s, sequence_increment = %s", numbering
    )
    given = {}
    for sequence in sequences:
        if sequence.cycles:
            raise _unfit(numbering, f"{sequence.full_name} begins anew at its end: NO CYCLE before")
        given[sequence.full_name] = _restart(connection, sequence, numbering)
        connection.execute(
            "INSERT INTO groupcert.sequences SELECT oid, %s FROM pg_class"
            " WHERE relname = %s AND relnamespace = quote_ident(%s)::regnamespace"
            " ON CONFLICT DO NOTHING",
            (sequence.step, sequence.name, sequence.schema),
        )
    return given


def reset_sequences(connection: "psycopg.Connection[Any]") -> None:
    """Has sequences count as they did before, behind every number that is used."""
    for sequence in read_sequences(connection):
        if sequence.is_numbered:
            _restart(connection, sequence, AS_ONE)


def _restart(
    connection: "psycopg.Connection[Any]", sequence: NumberSequence, numbering: Numbering
) -> int:
    """Has a sequence go on at the next number of a numbering, and returns that. Numbers of rows
    count, too: others' rows have come without it.
    """
    name = quoted(sequence.schema, sequence.name)
    stride = sequence.step * numbering.increment
    # Nobody takes a number from here on.
    connection.execute(f"ALTER SEQUENCE {name} INCREMENT BY {stride}".encode())
    row = connection.execute(f"SELECT last_value, is_called FROM {name}".encode()).fetchone()
    assert row is not None, "a sequence without a row"
    last, is_called = row
    direction = 1 if sequence.step > 0 else -1
    free = [last + direction if is_called else last]
    for schema, table, column, kind in sequence.columns:
        if kind in _INTEGERS:
            last_used = f"{'max' if direction > 0 else 'min'}({quoted(column)})"
            query = f"SELECT {last_used} FROM {quoted(schema, table)}"
            used = connection.execute(query.encode()).fetchone()
            if used and used[0] is not None:
                free.append(used[0] + direction)
    number = sequence.next_number(max(free, key=lambda each: each * direction), numbering)
    if not sequence.smallest <= number <= sequence.largest:
        raise _unfit(
            numbering,
            f"the next number of {sequence.full_name} is {number}, and it ends at"
            f" {sequence.largest if direction > 0 else sequence.smallest}: change its type or"
            " limit before",
        )
    connection.execute(f"ALTER SEQUENCE {name} RESTART WITH {number}".encode())
    return number


def _unfit(numbering: Numbering, problem: str) -> InvalidSetting:
    return InvalidSetting(
        name="--sequence-increment",
        value=numbering.increment,
        expected=f"sequences that can have it; {problem}",
    )
