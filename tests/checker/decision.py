"""What the model says of a transaction at its place in the log."""

from dataclasses import dataclass

from groupcert.internal.v1.log_pb2 import LoggedTransaction


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What became of a transaction at its place."""

    transaction: LoggedTransaction
    place: tuple[int, int]
    """The message's sequence, and the index in it."""
    origin: str
    verdict: str
    gtid: str = ""
    version: int = 0
    item: int = 0
    """Of a conflict, and the version that won."""
    winner: int = 0
    stamps: tuple[int, int] = (0, 0)
    """(last_committed, sequence_number) at the observer; zeros: it was its own."""
