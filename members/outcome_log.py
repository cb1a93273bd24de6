"""Outcomes by transaction id on disk, so that a restarted member answers a retry as the others do.

The rule it keeps: what the store has after a restart is what `OutcomeTable` would remember: the
same outcomes, in the same two generations. Of a conflict only the verdict and its text are kept.
"""

import json
from collections.abc import Sequence

from certifier.gtid import parse_gtid
from certifier.outcomes import OutcomeTable
from certifier.records import Outcome, Verdict
from certifier.store import Batch, Family, Store, integer_key


class OutcomeLog:
    """One entry for each stored group of messages, by the last message's log sequence."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._old_start = 0
        self._young_start = 0

    def save(
        self,
        batch: Batch,
        log_sequence: int,
        identified: Sequence[tuple[bytes, Outcome]],
        *,
        turned: bool,
    ) -> None:
        """Adds outcomes to a batch; after a turn of generations, deletes what was forgotten."""
        if turned:
            batch.delete_range(
                Family.OUTCOMES, integer_key(self._old_start), integer_key(self._young_start)
            )
            self._old_start, self._young_start = self._young_start, log_sequence
        if identified:
            encoded = json.dumps([_encode(*each) for each in identified])
            batch.put(Family.OUTCOMES, integer_key(log_sequence), encoded.encode())

    def load(self, table: OutcomeTable) -> None:
        """Fills an empty table."""
        for key, encoded in self._store.scan(Family.OUTCOMES):
            turned = [table.remember(*_decode(each)) for each in json.loads(encoded)]
            if any(turned):
                log_sequence = int.from_bytes(key, "big")
                self._old_start, self._young_start = self._young_start, log_sequence


def _encode(transaction_id: bytes, outcome: Outcome) -> tuple[str, int, int, str, str]:
    gtid = str(outcome.gtid) if outcome.gtid else ""
    return transaction_id.hex(), int(outcome.verdict), outcome.version, gtid, outcome.reason


def _decode(fields: tuple[str, int, int, str, str]) -> tuple[bytes, Outcome]:
    transaction_id, verdict, version, gtid, reason = fields
    return bytes.fromhex(transaction_id), Outcome(
        Verdict(verdict),
        parse_gtid(gtid) if gtid else None,
        version,
        reason=reason,
    )
