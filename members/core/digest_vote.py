"""Compares digests of the certification state between members, position by position.

The rule it keeps: a member whose digest differs from that of half of the view or more cannot be
trusted, and stops. With two members it is unknown which of them is right: both stop. Pure.
"""

from collections.abc import Container

from ...certifier.errors import DigestMismatch
from .log_records import LogBatch, StableReport

DIGESTS_KEPT = 4096
"""Log messages whose digest is kept, to be compared with what other members report."""


class DigestVote:
    """This member's last digests, and the runs that disagree with them."""

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}
        self._disagreeing: set[int] = set()

    def note(self, log_sequence: int, digest: bytes) -> None:
        """Stores this member's digest after a message of the log."""
        self._digests[log_sequence] = digest
        self._digests.pop(log_sequence - DIGESTS_KEPT, None)

    def at(self, log_sequence: int) -> bytes:
        """Returns the digest after one of the last messages; it must be known."""
        return self._digests[log_sequence]

    def find(self, log_sequence: int) -> bytes:
        """Returns the digest after a message; empty if it is not known, or no longer."""
        return self._digests.get(log_sequence, b"")

    def compare(self, batch: LogBatch, report: StableReport, view_size: int) -> None:
        """Compares another member's digest with ours at the same log position. A position whose
        digest we no longer keep counts as equal.

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
        """Drops the votes of all other runs: members that are gone do not vote."""
        self._disagreeing = {each for each in self._disagreeing if each in incarnations}
