"""Explains why a transaction lost: as a `Conflict`, and as a sentence.

Other systems tell the client only that certification failed. Here the outcome names the row, the
transaction that wrote it first, and both positions in the total order.
"""

from .certified_window import CertifiedWindow
from .position import log_sequence_of
from .records import Conflict


def explain(
    window: CertifiedWindow, item: int, winner: int, snapshot_version: int, position: int
) -> Conflict:
    """Returns the conflict of a transaction at `position` over `item`, last written by the version
    `winner`.
    """
    return Conflict(
        item=item,
        winner_version=winner,
        winner_gtid=window.gtid(winner),
        winner_origin=window.origin(winner),
        winner_position=window.position(winner),
        snapshot_version=snapshot_version,
        position=position,
    )


def in_words(conflict: Conflict, key: str | None = None) -> str:
    """Returns one sentence for people; `key` is the row's readable name if it is known."""
    row = key if key else f"item {conflict.item:016x}"
    return (
        f"{row} was written first by {conflict.winner_gtid} from {conflict.winner_origin} "
        f"(version {conflict.winner_version}, log {log_sequence_of(conflict.winner_position)}); "
        f"this transaction read version {conflict.snapshot_version} "
        f"and would have passed from version {conflict.winner_version} on"
    )
