"""Writes a certifier's decisions as rows of the certification log.

Nothing here decides. What a record causes beside its outcome (versions for transactions executed
elsewhere, steps of a collection) is found by comparing the certifier with its state before the
record.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from ..core import Certifier
from ..gtid_set import GtidSet
from ..records import (
    VIEW_CHANGE_STAMPS,
    ExecutedElsewhere,
    GarbageCollection,
    Outcome,
    Transaction,
    Verdict,
    ViewChange,
)
from .schema import (
    FORMAT_VERSION,
    RecordKind,
    Row,
    Source,
    Value,
    bounded,
    place_of,
    signed,
)

_VERDICTS = {verdict: verdict.name.lower() for verdict in Verdict}


class Report(NamedTuple):
    """A member's report about itself: `digest` (8 bytes) of its certification state after the
    message `sequence` of the log; `chain` of its history at `place`, 0 if it keeps no history.
    """

    stable_version: int
    sequence: int
    digest: bytes
    place: int = 0
    chain: bytes = b""


class HistoryRecorder:
    """Follows one certifier: each method is called right after the certifier took a record."""

    def __init__(
        self, certifier: Certifier, observer: str, source: Source, history: str = "1"
    ) -> None:
        """Starts to follow `certifier`; `history` differs for each of the observer's histories."""
        self._certifier = certifier
        self._observer = observer
        self._history = history
        self._source = source
        self._version = certifier.window.newest_version
        self._first_version = certifier.window.first_version
        self._purged = certifier.purged_total
        self._stable = GtidSet()

    def start(self, position: int) -> Row:
        """Returns the row that a history begins with, before the record at `position`."""
        certifier = self._certifier
        return {
            **self._row(position, RecordKind.START),
            "sequence_number": certifier.clock.sequence_number - 1,
            "last_committed_global": certifier.clock.last_committed_global,
            "stable_version": certifier.stable_version,
            "collected_version": certifier.window.first_version - 1,
            "settings": self._settings(),
        }

    def settings(self, position: int) -> Row:
        """Returns the row of the settings that hold from `position` on."""
        return {**self._row(position, RecordKind.SETTINGS), "settings": self._settings()}

    def transaction(
        self, transaction: Transaction, outcome: Outcome, known: Row | None = None
    ) -> list[Row]:
        """Returns the row of a decided transaction, after a row for the transactions that it showed
        to be executed elsewhere, and before a row for the items that were collected then.

        `known`: columns that the certifier does not see, such as the session.
        """
        position = transaction.position
        rows = self.elsewhere(position)
        row = self.decided(transaction, outcome)
        if known:
            row |= known
        return [*rows, row, *self.collected(position)]

    def decided(self, transaction: Transaction, outcome: Outcome) -> Row:
        """Returns the row of a decided transaction alone."""
        row = self._row(transaction.position, RecordKind.TRANSACTION)
        row |= _asked(transaction) | _decided(transaction, outcome)
        if outcome.version:
            row["version"] = outcome.version
        return row

    def repetition(self, position: int, origin: str, session: str, transaction_id: str) -> Row:
        """Returns the row of a transaction that was decided before and came again."""
        return {
            **self._row(position, RecordKind.REPETITION),
            "origin": origin,
            "session": session,
            "transaction_id": transaction_id,
        }

    def report(self, position: int, origin: str, session: str, report: Report) -> Row:
        """Returns the row of a member's report about itself."""
        row = self._row(position, RecordKind.REPORT)
        row |= {
            "origin": origin,
            "session": session,
            "stable_version": bounded(report.stable_version),
            "reported_sequence": bounded(report.sequence),
            "reported_digest": int.from_bytes(report.digest[:8], "little", signed=True),
        }
        if report.place:
            row["reported_place"], row["reported_chain"] = bounded(report.place), report.chain
        return row

    def view_change(
        self, record: ViewChange, view_id: str | None = None, members: Sequence[str] = ()
    ) -> Row:
        """Returns the row of a view change."""
        last_committed, sequence_number = VIEW_CHANGE_STAMPS
        return {
            **self._row(record.position, RecordKind.VIEW_CHANGE),
            "last_committed": last_committed,
            "sequence_number": sequence_number,
            "last_committed_global": self._certifier.clock.last_committed_global,
            "view_id": view_id,
            "members": list(members),
            "resets_clock": record.resets_clock,
        }

    def executed_elsewhere(self, record: ExecutedElsewhere) -> list[Row]:
        """Returns the row of transactions executed elsewhere; none if all of them were known."""
        return self.elsewhere(record.position)

    def elsewhere(self, position: int) -> list[Row]:
        """Returns the rows of transactions found to be executed elsewhere since the last call."""
        window = self._certifier.window
        rows = []
        for version in range(self._version + 1, window.newest_version + 1):
            if version in window.elsewhere:
                row = self._row(position, RecordKind.EXECUTED_ELSEWHERE)
                row["version"] = version
                rows.append(row | {"snapshot_set": str(window.elsewhere[version])})
        self._version = window.newest_version
        return rows

    def collected(self, position: int) -> list[Row]:
        """Returns the row of the items collected since the last call, if there are any."""
        certifier = self._certifier
        first_version, purged = certifier.window.first_version, certifier.purged_total
        if (first_version, purged) == (self._first_version, self._purged):
            return []
        row = self._row(position, RecordKind.COLLECTION)
        row["collected_version"] = first_version - 1
        row["purged_items"] = purged - self._purged
        row["sequence_number"] = certifier.clock.sequence_number - 1
        row["last_committed_global"] = certifier.clock.last_committed_global
        self._first_version, self._purged = first_version, purged
        return [row]

    def garbage_collection(self, record: GarbageCollection) -> list[Row]:
        """Returns the row of a stable set, and one for the items collected at once."""
        certifier = self._certifier
        row = self._row(record.position, RecordKind.STABLE_SET)
        row["stable_version"] = certifier.stable_version
        if not isinstance(record.stable, int):
            self._stable |= record.stable & certifier.executed()
            row["stable_set"] = str(self._stable)
        return [row, *self.collected(record.position)]

    def _row(self, position: int, kind: RecordKind) -> Row:
        return {
            "format_version": FORMAT_VERSION,
            "observer": self._observer,
            "history": self._history,
            "place": place_of(position, kind),
            "kind": kind.value,
            "version": self._certifier.window.newest_version,
        }

    def _settings(self) -> str:
        options = self._certifier.options
        settings: dict[str, object] = {
            "source": self._source.value,
            "group_source": options.group_source,
            "gtid_assignment_block_size": options.gtid_assignment_block_size,
            "gc_window": options.gc_window,
            "snapshot_lag_max": options.snapshot_lag_max,
        }
        return json.dumps(settings, separators=(",", ":"))


def _asked(transaction: Transaction) -> Row:
    """Returns the columns with which the transaction came."""
    row: dict[str, Value] = {
        "origin": transaction.origin,
        "gtid_brought": transaction.gtid is not None,
        "is_local": transaction.local,
        "write_set": [signed(item) for item in dict.fromkeys(transaction.write_set)],
    }
    if transaction.read_set:
        row["read_set"] = [signed(item) for item in dict.fromkeys(transaction.read_set)]
    if isinstance(transaction.snapshot, int):
        row["snapshot_version"] = bounded(transaction.snapshot)
    else:
        row["snapshot_set"] = str(transaction.snapshot)
    return row


def _decided(transaction: Transaction, outcome: Outcome) -> Row:
    """Returns the columns of the transaction's outcome."""
    row: dict[str, Value] = {"verdict": _VERDICTS[outcome.verdict]}
    gtid = outcome.gtid if outcome.verdict is Verdict.CERTIFIED else transaction.gtid
    if gtid is not None:
        row["gtid_source"], row["gtid_number"] = gtid.source, gtid.number
    if outcome.sequence_number is not None:
        row["last_committed"] = outcome.last_committed
        row["sequence_number"] = outcome.sequence_number
    if outcome.conflict is not None:
        row["winner_item"] = signed(outcome.conflict.item)
        row["winner_version"] = outcome.conflict.winner_version
        row["winner_origin"] = outcome.conflict.winner_origin
        row["snapshot_version"] = outcome.conflict.snapshot_version
    if outcome.reason:
        row["reason"] = outcome.reason
    return row
