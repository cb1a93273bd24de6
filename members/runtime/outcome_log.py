"""Stores outcomes by transaction id, so that a restarted member answers a retry as the others do.

The rule it keeps: after a restart the store gives what `OutcomeTable` remembered: the same
outcomes, in the same two generations. Of a conflict only the verdict is kept.
"""

import json

from groupcert.certifier.gtid import parse_gtid
from groupcert.certifier.outcomes import REASON_CHARACTERS_MAX, OutcomeTable
from groupcert.certifier.records import Outcome, Verdict
from groupcert.certifier.storage.store import Batch, Family, Store, integer_key


class OutcomeLog:
    """Outcomes in pieces, each under its first outcome's number and within one generation."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first_number = 0
        self._next_number = 0

    def save(self, batch: Batch, table: OutcomeTable) -> None:
        """Adds to the batch what the table remembered and forgot since the last call."""
        new = table.since(self._next_number)
        number = table.next_number - len(new)
        old = max(table.young_number - number, 0)
        for piece in (new[:old], new[old:]):
            if piece:
                encoded = json.dumps([table.forgotten_version, *(_encode(*each) for each in piece)])
                batch.put(Family.OUTCOMES, integer_key(number), encoded.encode())
                number += len(piece)
        self._next_number = table.next_number
        if self._first_number < table.first_number:
            batch.delete_range(
                Family.OUTCOMES, integer_key(self._first_number), integer_key(table.first_number)
            )
            self._first_number = table.first_number

    def load(self, outcomes_max: int) -> OutcomeTable:
        """Returns the table that was saved; an empty one if none was."""
        table: OutcomeTable | None = None
        for key, encoded in self._store.scan(Family.OUTCOMES):
            if table is None:
                table = OutcomeTable(outcomes_max, int.from_bytes(key, "big"))
            forgotten_version, *piece = json.loads(encoded)
            for each in piece:
                table.remember(*_decode(each))
            table.forgotten_version = forgotten_version
        table = table or OutcomeTable(outcomes_max)
        self._first_number, self._next_number = table.first_number, table.next_number
        return table


def _encode(transaction_id: bytes, outcome: Outcome) -> tuple[str, int, int, str, str]:
    gtid = str(outcome.gtid) if outcome.gtid else ""
    return transaction_id.hex(), outcome.verdict, outcome.version, gtid, outcome.reason


def _decode(fields: tuple[str, int, int, str, str]) -> tuple[bytes, Outcome]:
    """Cuts reasons that an earlier release stored with all that a client had sent."""
    transaction_id, verdict, version, gtid, reason = fields
    return bytes.fromhex(transaction_id), Outcome(
        Verdict(verdict),
        parse_gtid(gtid) if gtid else None,
        version,
        reason=reason[:REASON_CHARACTERS_MAX],
    )
