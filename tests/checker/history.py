"""What clients asked and were told, one operation after the other, as the checker reads it."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path


class Told(StrEnum):
    """What a client was told of a transaction."""

    COMMITTED = "committed"
    CONFLICT = "conflict"
    TOO_OLD = "too old"
    UNKNOWN = "unknown"
    NOTHING = "nothing"
    """It was not sent, or refused before it was ordered."""


@dataclass(slots=True)
class Operation:
    """A transaction of a session: its snapshot, what it read and wrote, and what became of it."""

    session: str
    transaction_id: bytes
    floor: int
    """The newest version that the session had seen before."""
    snapshot_version: int = 0
    reads: dict[bytes, bytes | None] = field(default_factory=dict)
    writes: dict[bytes, bytes | None] = field(default_factory=dict)
    """None: the row is deleted."""
    is_serializable: bool = False
    told: Told = Told.NOTHING
    gtid: str = ""
    version: int = 0
    item: int = 0
    """Of a conflict, with the winner as the client was told."""
    winner_gtid: str = ""
    winner_version: int = 0
    winner_member: str = ""
    winner_sequence: int = 0
    log_sequence: int = 0


@dataclass(slots=True)
class Observed:
    """What members and replicas hold at the end."""

    rows: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    """By name of the member or replica."""
    digests: dict[str, str] = field(default_factory=dict)
    stamps: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of the observer, by version."""
    gtids: dict[int, str] = field(default_factory=dict)


def write_history(path: Path, operations: Iterable[Operation]) -> None:
    """Writes operations as JSON lines, for people."""
    with path.open("w") as file:
        for operation in operations:
            file.write(json.dumps(asdict(operation), default=_text, skipkeys=True) + "\n")


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
