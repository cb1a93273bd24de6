"""Whether the group certified what this member did: digests of its state, compared place by place.

The rule it keeps: a member whose digest differs from that of half of the view or more cannot be
trusted, and must not go on. With two members nobody can tell which of them is right: both stop.
Pure.
"""

from collections.abc import Container

from certifier.errors import DigestMismatch
from members.log_records import LogBatch, StableReport

DIGESTS_KEPT = 4096
"""Log messages whose digest is remembered, to be compared with what other members report."""


class DigestVote:
    """This member's digests of late, and who disagrees with them."""

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}
        self._disagreeing: set[int] = set()

    def note(self, log_sequence: int, digest: bytes) -> None:
        """This member's digest after a message of the log."""
        self._digests[log_sequence] = digest
        self._digests.pop(log_sequence - DIGESTS_KEPT, None)

    def at(self, log_sequence: int) -> bytes:
        """The digest after one of the last messages."""
        return self._digests[log_sequence]

    def find(self, log_sequence: int) -> bytes:
        """The digest after a message; empty: it is not known, or not any more."""
        return self._digests.get(log_sequence, b"")

    def compare(self, batch: LogBatch, report: StableReport, view_size: int) -> None:
        """Takes another member's word; what it says of places long past counts as agreement.

        Raises:
            DigestMismatch: Half of the view or more certified something else.
        """
        mine = self._digests.get(report.digest_log_sequence)
        if mine is None or mine == report.digest:
            self._disagreeing.discard(batch.incarnation)
            return
        self._disagreeing.add(batch.incarnation)
        if 2 * len(self._disagreeing) >= view_size:
            raise DigestMismatch(
                position=report.digest_log_sequence,
                member=batch.member,
                mine=mine.hex(),
                theirs=report.digest.hex(),
            )

    def keep_only(self, incarnations: Container[int]) -> None:
        """Members that are gone have no voice."""
        self._disagreeing = {each for each in self._disagreeing if each in incarnations}
