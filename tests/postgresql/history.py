"""Histories of lists: each transaction reads lists, and appends values that nobody else appends.

A list shows all that was appended to it, in order: one read says which transactions came before.

Source: Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations"
(2020), the workload list-append.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.postgresql.told import Told


class Read(NamedTuple):
    """A list as a transaction read it, its own values included."""

    key: int
    values: tuple[int, ...]


class Append(NamedTuple):
    """A value that a transaction appended."""

    key: int
    value: int


Step: TypeAlias = Read | Append


@dataclass(slots=True, eq=False)
class Operation:
    """A transaction of a client: its steps in their order, and what became of it."""

    client: str
    steps: list[Step] = field(default_factory=list)
    told: Told = Told.UNKNOWN

    def __str__(self) -> str:
        """The steps as people write them: `r 3 [1 2], append 3 4`."""
        steps = (
            f"r {step.key} [{' '.join(map(str, step.values))}]"
            if isinstance(step, Read)
            else f"append {step.key} {step.value}"
            for step in self.steps
        )
        return f"{self.client} ({', '.join(steps)})"


def write_history(path: Path, operations: Iterable[Operation]) -> None:
    """Writes operations as JSON lines."""
    with path.open("w") as file:
        for each in operations:
            line = {"client": each.client, "told": each.told, "steps": each.steps}
            file.write(json.dumps(line) + "\n")
