"""Clients that read lists and append to them, and write down what they read and were told."""

import itertools
import random
from collections.abc import Iterator, Mapping

from tests.postgresql.history import Append, Operation, Read
from tests.postgresql.told import Answer, Connection, transact

SCHEMA = "CREATE TABLE lists (id int PRIMARY KEY, items int[] NOT NULL);"
SLOTS = 6
"""Lists that are in use at a time."""
APPENDS_MAX = 60
"""To a list, about; then another one takes its slot: what is read stays short."""
STEPS_MAX = 4
_READ = b"SELECT items FROM lists WHERE id = %s"
_APPEND = (
    b"INSERT INTO lists VALUES (%(key)s, ARRAY[%(value)s::int])"
    b" ON CONFLICT (id) DO UPDATE SET items = lists.items || EXCLUDED.items"
)


class Lists:
    """What all clients share: the next value, and the operations."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._values = itertools.count(1)

    def value(self) -> int:
        """Returns a value that nobody else appends."""
        return next(self._values)

    def key(self, chance: random.Random) -> int:
        """Returns a list that is in use."""
        generation = len(self.operations) // (APPENDS_MAX * SLOTS)
        return generation * SLOTS + chance.randrange(SLOTS)


class ListClient:
    """Reads and appends, in transactions of one to four steps; each third one only reads."""

    def __init__(self, name: str, chance: random.Random, lists: Lists) -> None:
        self._name = name
        self._chance = chance
        self._lists = lists

    def work(self, connection: Connection) -> Answer:
        """Runs one transaction."""
        operation = Operation(self._name)
        self._lists.operations.append(operation)
        reads_only = self._chance.random() < 1 / 3
        keys = [self._lists.key(self._chance) for _ in range(self._chance.randint(1, STEPS_MAX))]

        def run(session: Connection) -> None:
            for key in keys:
                if reads_only or self._chance.random() < 0.5:
                    row = session.execute(_READ, (key,)).fetchone()
                    operation.steps.append(Read(key, tuple(row[0]) if row else ()))
                else:
                    value = self._lists.value()
                    operation.steps.append(Append(key, value))
                    session.execute(_APPEND, {"key": key, "value": value})

        answer = transact(connection, run)
        operation.told = answer.told
        return answer


def final_lists(session: Connection) -> Mapping[int, tuple[int, ...]]:
    """Returns all lists as they are at the end."""
    return {key: tuple(values) for key, values in _rows(session)}


def _rows(session: Connection) -> Iterator[tuple[int, list[int]]]:
    yield from session.execute(b"SELECT id, items FROM lists")
