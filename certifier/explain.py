"""Why a transaction lost, as a value and in words.

Peers tell the client of a failed certification no more than that it failed; here the row, the
winner and both places in the order are part of the outcome.
"""

from certifier.certified_window import CertifiedWindow
from certifier.records import Conflict, log_sequence_of


def explain(
    window: CertifiedWindow, item: int, winner: int, snapshot_version: int, position: int
) -> Conflict:
    """The conflict of a transaction at `position` over `item`, last written by the version
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
    """One sentence for people; `key` is the row's readable name where it is known."""
    row = key if key else f"item {conflict.item:016x}"
    return (
        f"{row} was written first by {conflict.winner_gtid} from {conflict.winner_origin} "
        f"(version {conflict.winner_version}, log {log_sequence_of(conflict.winner_position)}); "
        f"this transaction read version {conflict.snapshot_version} "
        f"and would have passed from version {conflict.winner_version} on"
    )
