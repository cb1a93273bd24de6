"""What clients did, what they were told, and what each member has in the end; as JSON lines, too.

The rule it keeps: a history holds what was seen from outside and nothing that a checker has
concluded from it. So the history of a run that failed can be saved, and checked again later.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from groupcert.members.demo.group_checks import Applied

ENCODING = "latin-1"
"""Keys and values are bytes: each is one character, and comes back as it was."""

SERIALIZABLE = "-serializable"
"""How names of workloads end whose transactions are."""


class Outcome(StrEnum):
    """How a transaction ended, as far as its client knows."""

    COMMITTED = "committed"
    CONFLICT = "conflict"
    TOO_OLD = "too_old"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    """It never came to a commit: no member took it, or its snapshot was gone."""
    UNKNOWN = "unknown"

    @property
    def is_aborted(self) -> bool:
        """Whether the client was told that nothing of it was kept."""
        return self not in (Outcome.COMMITTED, Outcome.UNKNOWN)


class Workload(NamedTuple):
    """One kind of work on rows of its own, whose keys begin with its name.

    `run` tells the rows of several runs on one group apart.
    """

    kind: str
    serializable: bool = False
    run: str = ""

    @property
    def name(self) -> str:
        """The run, the kind, and the isolation that is asked for."""
        name = f"{self.kind}{SERIALIZABLE}" if self.serializable else self.kind
        return f"{self.run}-{name}" if self.run else name

    @property
    def prefix(self) -> bytes:
        """How the keys of its rows begin."""
        return f"{self.name}/".encode()


class Step(NamedTuple):
    """A read or a write of one row; the value None: there is no row, or it was deleted."""

    is_write: bool
    key: bytes
    value: bytes | None


class Conflict(NamedTuple):
    """What a client was told of its conflict: the item, who won, and the log's messages of both."""

    item: int
    winner_gtid: str
    winner_version: int
    winner_member: str
    winner_sequence: int
    log_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One transaction as its client saw it. A transaction that is tried again is another one.

    `process` is the client, `index` counts its transactions, `version_min` is the state that its
    snapshot had to reach (0: any; `latest`: all that was ordered before), `version` the state that
    its commit made. Times count from the start of the run. One without a `transaction_id` has no
    claims: its server says nothing of versions.
    """

    process: int
    index: int
    workload: str
    transaction_id: bytes
    member: str
    invoked_ms: int
    completed_ms: int
    version_min: int
    latest: bool
    snapshot_version: int
    steps: tuple[Step, ...]
    outcome: Outcome
    version: int
    cause: str = ""
    gtid: str = ""
    conflict: Conflict | None = None

    @property
    def name(self) -> str:
        """What findings call it."""
        return f"T{self.process}.{self.index}"

    @property
    def is_committed(self) -> bool:
        """Whether the client was told that it committed."""
        return self.outcome is Outcome.COMMITTED

    @property
    def is_serializable(self) -> bool:
        """Whether what it read was to be certified, too."""
        return self.workload.endswith(SERIALIZABLE)

    @property
    def has_writes(self) -> bool:
        """Whether it changes anything."""
        return any(step.is_write for step in self.steps)

    @property
    def writes(self) -> dict[bytes, bytes | None]:
        """The last value that it writes of each row."""
        return {key: value for is_write, key, value in self.steps if is_write}

    def external_reads(self) -> dict[bytes, bytes | None]:
        """The first value of each row that it read before it wrote that row itself."""
        found: dict[bytes, bytes | None] = {}
        written: set[bytes] = set()
        for is_write, key, value in self.steps:
            if is_write:
                written.add(key)
            elif key not in written:
                found.setdefault(key, value)
        return found

    def __str__(self) -> str:
        place = f", version {self.version}" if self.version else ""
        return f"{self.name} ({self.outcome} at {self.member or 'no member'}{place})"


class Fault(NamedTuple):
    """Something that was done to the group, or the end of it."""

    at_ms: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """What a member has once all faults are healed. `applied`: empty if it keeps no history.

    `outcomes`: what it remembers of transactions, by the id in hex, in words: what was decided, and
    at which place and why; the latter is empty where it is no longer known.
    """

    member: str
    version: int
    digest: str
    gtid_executed: str
    rows: Mapping[bytes, bytes]
    applied: Sequence[Applied] = ()
    outcomes: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class History:
    """One run: operations in any order, final states if they were read."""

    seed: int
    workloads: Sequence[Workload]
    operations: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    finals: list[FinalState] = field(default_factory=list)

    def of(self, workload: Workload) -> list[Operation]:
        """The operations of one workload, in the order of their ends."""
        operations = [each for each in self.operations if each.workload == workload.name]
        return sorted(operations, key=lambda each: (each.completed_ms, each.process, each.index))

    def save(self, path: Path) -> None:
        """Writes it as JSON lines."""
        run = {"seed": self.seed, "workloads": self.workloads, "faults": self.faults}
        with path.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"type": "run", **run}) + "\n")
            for operation in self.operations:
                file.write(
                    json.dumps({"type": "operation", **_operation_document(operation)}) + "\n"
                )
            for final in self.finals:
                file.write(json.dumps({"type": "final", **_final_document(final)}) + "\n")


def load_history(path: Path) -> History:
    """Reads what `History.save` has written.

    Raises:
        ValueError: A line is something else.
    """
    history: History | None = None
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                history = _with_line(history, json.loads(line))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: no line of a history: {error!r}") from error
    if history is None:
        raise ValueError(f"{path}: an empty file is no history")
    return history


def _with_line(history: History | None, document: dict[str, Any]) -> History:
    """Takes in one line; the first one tells of the run."""
    kind = document.pop("type")
    if kind == "run":
        workloads = tuple(Workload(*each) for each in document["workloads"])
        faults = [Fault(*each) for each in document["faults"]]
        return History(seed=document["seed"], workloads=workloads, faults=faults)
    if history is None:
        raise ValueError("the first line does not tell of the run")
    if kind == "operation":
        history.operations.append(_operation(document))
    elif kind == "final":
        history.finals.append(_final(document))
    else:
        raise ValueError(f"{kind!r} is no type of line")
    return history


def _operation_document(operation: Operation) -> dict[str, Any]:
    document = {name: getattr(operation, name) for name in Operation.__dataclass_fields__}
    document["transaction_id"] = operation.transaction_id.hex()
    document["steps"] = [
        (is_write, _text(key), None if value is None else _text(value))
        for is_write, key, value in operation.steps
    ]
    return document


def _operation(document: dict[str, Any]) -> Operation:
    document["transaction_id"] = bytes.fromhex(document["transaction_id"])
    document["outcome"] = Outcome(document["outcome"])
    if document["conflict"]:
        document["conflict"] = Conflict(*document["conflict"])
    document["steps"] = tuple(
        Step(is_write, _bytes(key), None if value is None else _bytes(value))
        for is_write, key, value in document["steps"]
    )
    return Operation(**document)


_APPLIED_FIELDS = (
    "gtid",
    "version",
    "clock_run",
    "last_committed",
    "sequence_number",
    "started_tick",
    "committed_tick",
)
"""Between the transaction's id and its items; with their names they would be most of a file."""


def _final_document(final: FinalState) -> dict[str, Any]:
    document = {name: getattr(final, name) for name in FinalState.__dataclass_fields__}
    document["rows"] = {_text(key): _text(value) for key, value in final.rows.items()}
    document["applied"] = [
        (
            each.transaction_id.hex(),
            *(getattr(each, name) for name in _APPLIED_FIELDS),
            list(each.items),
        )
        for each in final.applied
    ]
    return document


def _final(document: dict[str, Any]) -> FinalState:
    document["rows"] = {_bytes(key): _bytes(value) for key, value in document["rows"].items()}
    document["applied"] = tuple(
        Applied(
            transaction_id=bytes.fromhex(transaction_id),
            items=tuple(items),
            **dict(zip(_APPLIED_FIELDS, columns, strict=True)),
        )
        for transaction_id, *columns, items in document["applied"]
    )
    document["outcomes"] = {key: tuple(told) for key, told in document["outcomes"].items()}
    return FinalState(**document)


def _text(value: bytes) -> str:
    return value.decode(ENCODING)


def _bytes(text: str) -> bytes:
    return text.encode(ENCODING)
