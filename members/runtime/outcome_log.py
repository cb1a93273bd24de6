"""Stores outcomes by transaction id, so that a restarted member answers a retry as the others do.

The rule it keeps: after a restart the store gives what `OutcomeTable` remembered: the same
outcomes, in the same two generations. Of a conflict only the verdict is kept.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...certifier.gtid import Gtid
from ...certifier.outcomes import Doubtful, OutcomeTable
from ...certifier.records import Outcome, Verdict
from ...certifier.storage.store import Batch, Family, Store, integer_key


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
                encoded = _encode(table.forgotten_version, piece)
                batch.put(Family.OUTCOMES, integer_key(number), encoded)
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
            columns = json.loads(encoded)
            for transaction_id, outcome in _decode(columns):
                table.remember(transaction_id, outcome)
            table.forgotten_version = columns["forgotten_version"]
        table = table or OutcomeTable(outcomes_max)
        self._first_number, self._next_number = table.first_number, table.next_number
        return table


def _encode(forgotten_version: int, piece: Sequence[tuple[bytes, Outcome]]) -> bytes:
    """Returns outcomes as columns in JSON: most of them differ in few numbers."""
    ids, outcomes = zip(*piece, strict=True)
    verdicts, gtids, versions, *_, reasons = zip(*outcomes, strict=True)
    sources = [*dict.fromkeys(gtid.source for gtid in gtids if gtid)]
    number_of = {source: number for number, source in enumerate(sources, 1)}
    columns = {
        "forgotten_version": forgotten_version,
        "id_bytes": list(map(len, ids)),
        "ids": b"".join(ids).hex(),
        "verdicts": verdicts,
        "versions": versions,
        "sources": ["", *sources],
        "gtid_sources": [number_of[gtid[0]] if gtid else 0 for gtid in gtids],
        "gtid_numbers": [gtid[1] if gtid else 0 for gtid in gtids],
        "reasons": {number: reason for number, reason in enumerate(reasons) if reason},
        "doubtful": [number for number, each in enumerate(outcomes) if isinstance(each, Doubtful)],
    }
    return json.dumps(columns).encode()


def _decode(columns: dict[str, Any]) -> Iterator[tuple[bytes, Outcome]]:
    """Yields the outcomes of columns that `_encode` made, with their ids."""
    ids, start = bytes.fromhex(columns["ids"]), 0
    sources, reasons = columns["sources"], columns["reasons"]
    doubtful = set(columns["doubtful"])
    names = ("id_bytes", "verdicts", "versions", "gtid_sources", "gtid_numbers")
    for number, values in enumerate(zip(*(columns[name] for name in names), strict=True)):
        length, verdict, version, source, gtid_number = values
        gtid = Gtid(sources[source], gtid_number) if source else None
        reason = reasons.get(str(number), "")
        kind = Doubtful if number in doubtful else Outcome
        yield ids[start : start + length], kind(Verdict(verdict), gtid, version, reason=reason)
        start += length
