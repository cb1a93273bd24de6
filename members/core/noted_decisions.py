"""Notes what a member's certifier decides, for the certification log.

The rule it keeps: noting is cheap, because it happens between reading a message and answering
clients. Of nearly every transaction only references are kept; they become text when the member's
state is stored, and rows when they are read. Pure.
"""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from ...certifier.core import Certifier
from ...certifier.errors import CorruptStore
from ...certifier.history.recorder import HistoryRecorder, Report
from ...certifier.history.schema import (
    FORMAT_VERSION,
    STEP_BITS,
    RecordKind,
    Row,
    Source,
    place_of,
)
from ...certifier.records import GarbageCollection, Outcome, Transaction, Verdict, ViewChange
from ...certifier.write_set import store_key_item
from .log_records import LogBatch, LoggedTransaction, MemberReport
from .views import View

KeysOf = Callable[[bytes], Sequence[bytes]]
"""The keys of the rows that a payload changes."""

_FORMAT = 2
_HEADER: Final = struct.Struct("<BI")
_LENGTH: Final = struct.Struct("<I")
_ITEM_BYTES: Final = 8
_ITEM_COLUMNS: Final = ("write_set", "read_set")
_to_json = json.JSONEncoder(
    separators=(",", ":"), check_circular=False, default=lambda value: value.hex()
).encode
_CERTIFIED, _CONFLICT = Verdict.CERTIFIED, Verdict.CONFLICT
_VERDICTS = {verdict: verdict.name.lower() for verdict in (_CERTIFIED, _CONFLICT)}


class Sending(NamedTuple):
    """Data that the transactions of one message share. `session`: the run of the member."""

    origin: str
    session: str
    is_local: bool
    decided_us: int


@dataclass(slots=True)
class Noted:
    """Notes that are not stored yet: ordinary transactions in short, and rows."""

    transactions: list[tuple[Sending, int, int, LoggedTransaction, Outcome]] = field(
        default_factory=list
    )
    """Each with its message's data, its position, the newest version after it, and its outcome."""
    rows: list[Row] = field(default_factory=list)

    def absorb(self, later: "Noted") -> None:
        """Adds what came later."""
        self.transactions += later.transactions
        self.rows += later.rows

    def __len__(self) -> int:
        return len(self.transactions) + len(self.rows)


class Decisions:
    """Notes what one member decides, if `is_on`."""

    def __init__(
        self,
        observer: str = "",
        *,
        is_on: bool = False,
        keys_of: KeysOf | None = None,
        source: Source = Source.MEMBER,
    ) -> None:
        """Begins without notes; `keys_of` returns the keys of a payload's rows; None: no keys."""
        self.is_on = is_on
        self._source = source
        self._observer = observer
        self._keys_of = keys_of
        self._recorder: HistoryRecorder
        self._certifier: Certifier
        self._first_version = 0

    def follow(self, certifier: Certifier) -> None:
        """Continues with a certifier in its present state."""
        self._certifier = certifier
        self._recorder = HistoryRecorder(certifier, self._observer, self._source)
        self._first_version = certifier.window.first_version

    def start(self, position: int, decided_us: int) -> Noted:
        """Returns the row that a history begins with, before the record at `position`."""
        return Noted(rows=[{**self._recorder.start(position), "decided_us": decided_us}])

    def decided(
        self,
        noted: Noted,
        sending: Sending,
        position: int,
        logged: LoggedTransaction,
        outcome: Outcome,
        is_large: bool,
    ) -> None:
        """Notes the outcome of a transaction, right after the decision."""
        _, snapshot, _, _, gtid, _, _, domain_id = logged
        verdict, _, version, _, _, _, _ = outcome
        window = self._certifier.window
        if window.elsewhere:
            _dated(noted, sending.decided_us, self._recorder.elsewhere(position))
        is_special = is_large or domain_id or gtid is not None or type(snapshot) is not int
        if is_special or verdict > _CONFLICT:
            noted.rows.append(self._row(sending, position, logged, outcome, is_large))
        else:
            version = version or window.newest_version
            noted.transactions.append((sending, position, version, logged, outcome))
        if window.first_version != self._first_version:
            self._first_version = window.first_version
            _dated(noted, sending.decided_us, self._recorder.collected(position))

    def repeated(
        self, noted: Noted, sending: Sending, position: int, logged: LoggedTransaction
    ) -> None:
        """Notes that a transaction came again under an id that was known."""
        origin, session, _, decided_us = sending
        transaction_id = logged.transaction_id.hex()
        row = self._recorder.repetition(position, origin, session, transaction_id)
        _dated(noted, decided_us, [row])

    def reported(
        self, noted: Noted, decided_us: int, position: int, batch: LogBatch, report: MemberReport
    ) -> None:
        """Notes a member's report."""
        if self.is_on:
            told = Report(
                report.stable_version,
                report.digest_log_sequence,
                report.digest,
                report.history_place,
                report.history_chain,
            )
            session = session_of(batch.incarnation)
            row = self._recorder.report(position, batch.member, session, told)
            _dated(noted, decided_us, [row])

    def view_changed(
        self, noted: Noted, decided_us: int, position: int, view: View, resets_clock: bool
    ) -> None:
        """Notes a new view."""
        if self.is_on:
            record = ViewChange(position, resets_clock)
            names = [each.name for each in view.members]
            row = self._recorder.view_change(record, str(view.view_id), names)
            _dated(noted, decided_us, [row])

    def collecting(self, noted: Noted, decided_us: int, record: GarbageCollection) -> None:
        """Notes a stable set, up to which certifiers collect."""
        if self.is_on:
            _dated(noted, decided_us, self._recorder.garbage_collection(record))

    def settings_changed(self, noted: Noted, decided_us: int, position: int) -> None:
        """Notes a change of the group's settings."""
        if self.is_on:
            _dated(noted, decided_us, [self._recorder.settings(position)])

    def encode(self, noted: Noted) -> bytes:
        """Returns the noted rows as bytes for the store: JSON, then all items; see `decode`."""
        items: list[int] = []
        sendings: list[Sending] = []
        last: Sending | None = None
        transactions = []
        keys_of = self._keys_of
        for sending, position, version, logged, outcome in noted.transactions:
            if sending is not last:
                last = sending
                sendings.append(sending)
            transaction_id, snapshot, write_set, read_set, _, payload, _, _ = logged
            _, gtid, _, last_committed, sequence_number, conflict, _ = outcome
            asked: list[object] = [
                len(sendings) - 1,
                position,
                version,
                transaction_id.hex(),
                snapshot,
                len(write_set),
                len(read_set),
            ]
            items += write_set
            items += read_set
            if conflict is None:
                assert gtid is not None
                asked += (gtid[1], last_committed, sequence_number)
            else:
                asked += (conflict[0], conflict[1], conflict[3])
            if keys_of:
                asked.append(_keys(write_set, keys_of(payload)))
            transactions.append(asked)
        source = self._certifier.options.group_source
        signed: list[int] = []
        rows = [_without_items(row, signed) for row in noted.rows]
        text = _to_json((source, sendings, transactions, rows)).encode()
        head = _HEADER.pack(_FORMAT, len(noted)) + _LENGTH.pack(len(text))
        return head + text + struct.pack(f"<{len(items)}Q{len(signed)}q", *items, *signed)

    def _row(
        self,
        sending: Sending,
        position: int,
        logged: LoggedTransaction,
        outcome: Outcome,
        is_large: bool,
    ) -> Row:
        """Builds the row of a transaction that has something special about it."""
        origin, session, is_local, decided_us = sending
        transaction_id, snapshot, write_set, read_set, gtid, payload, _, domain_id = logged
        transaction = Transaction(position, origin, snapshot, write_set, read_set, gtid, is_local)
        row = self._recorder.decided(transaction, outcome)
        row |= {
            "session": session,
            "transaction_id": transaction_id.hex(),
            "decided_us": decided_us,
        }
        if is_large:
            row["is_large"] = True
        if domain_id:
            row["domain_id"] = domain_id
        if self._keys_of:
            row["write_keys"] = _keys([*dict.fromkeys(write_set)], self._keys_of(payload))
        return row


def session_of(incarnation: int) -> str:
    """Returns the name of a member's run in histories."""
    return f"{incarnation:x}"


def place_key(noted: Noted) -> int:
    """Returns the first place in `noted`, the key that it is stored under."""
    places = [int(str(row["place"])) for row in noted.rows]
    if noted.transactions:
        places.append(place_of(noted.transactions[0][1], RecordKind.TRANSACTION))
    return min(places)


def rows_in(block: bytes) -> int:
    """Returns the number of rows that `decode` gives for a stored block."""
    rows: int = _HEADER.unpack_from(block)[1]
    return rows


def decode(block: bytes, observer: str, history: str, path: str) -> list[dict[str, Any]]:
    """Returns the rows of a block that `encode` made, in the order of their places.

    Raises:
        CorruptStore: it is something else; `path` is named then.
    """
    source, sendings, transactions, rows = _document(block, path)
    for row in rows:
        row["observer"], row["history"] = observer, history
        if "reported_chain" in row:
            row["reported_chain"] = bytes.fromhex(row["reported_chain"])
    shared = {
        "format_version": FORMAT_VERSION,
        "observer": observer,
        "history": history,
        "kind": RecordKind.TRANSACTION.value,
        "gtid_brought": False,
    }
    sent = [
        {**shared, "origin": origin, "session": session, "is_local": local, "decided_us": decided}
        for origin, session, local, decided in sendings
    ]
    rows += [_plain_row(source, sent[transaction[0]], transaction) for transaction in transactions]
    rows.sort(key=_place)
    found: list[dict[str, Any]] = rows
    return found


def _without_items(row: Row, items: list[int]) -> Row:
    """Returns a row with counts instead of its items, and appends the items to `items`."""
    counts: Row = {}
    for name in _ITEM_COLUMNS:
        if name in row:
            found = cast("list[int]", row[name])
            items += found
            counts[name] = len(found)
    return row | counts


def _document(block: bytes, path: str) -> list[Any]:
    """Returns the JSON document of a block, with the items put back into it."""
    if block[:1] != bytes([_FORMAT]):
        raise CorruptStore(path=path, problem=f"decisions in format {block[:1].hex()}")
    begin = _HEADER.size + _LENGTH.size
    end = begin + _LENGTH.unpack_from(block, _HEADER.size)[0]
    document: list[Any] = json.loads(block[begin:end])
    count = (len(block) - end) // _ITEM_BYTES
    items = list(struct.unpack_from(f"<{count}q", block, end))
    begin = 0
    for transaction in document[2]:
        middle = begin + transaction[5]
        end = middle + transaction[6]
        transaction[5], transaction[6] = items[begin:middle], items[middle:end]
        begin = end
    for row in document[3]:
        for name in _ITEM_COLUMNS:
            if name in row:
                end = begin + row[name]
                row[name] = items[begin:end]
                begin = end
    return document


def _plain_row(source: str, sent: Row, transaction: list[Any]) -> Row:
    """Builds the row of a transaction of which `encode` has kept a list."""
    _, position, version, transaction_id, snapshot, write_set, read_set, *decided = transaction
    row = sent.copy()
    row["place"] = position << STEP_BITS | _TRANSACTION_STEP
    row["version"] = version
    row["transaction_id"] = transaction_id
    row["snapshot_version"] = snapshot
    row["write_set"] = _signed(write_set)
    if read_set:
        row["read_set"] = _signed(read_set)
    if isinstance(decided[2], str):
        item, row["winner_version"], row["winner_origin"] = decided[:3]
        row["winner_item"] = _signed([item])[0]
        row["verdict"] = _VERDICTS[_CONFLICT]
    else:
        row["verdict"] = _VERDICTS[_CERTIFIED]
        row["gtid_source"] = source
        row["gtid_number"] = decided[0]
        if decided[2] is not None:
            row["last_committed"], row["sequence_number"] = decided[1:3]
    if decided[3:]:
        row["write_keys"] = decided[3]
    return row


_TRANSACTION_STEP = place_of(0, RecordKind.TRANSACTION)
_OVERFLOW, _RANGE = 1 << 63, 1 << 64


def _place(row: dict[str, int]) -> int:
    return row["place"]


def _signed(items: list[int]) -> list[int]:
    """Returns items as signed integers, as Parquet has them, each once."""
    if len(items) > 1:
        items = list(dict.fromkeys(items))
    return [item - _RANGE if item >= _OVERFLOW else item for item in items]


def _keys(write_set: Sequence[int], keys: Sequence[bytes]) -> list[str]:
    """Returns the keys of the items as text, one for each; empty for an item of no row here."""
    words = {store_key_item(key): key.decode("utf-8", "backslashreplace") for key in keys}
    return [words.get(item, "") for item in dict.fromkeys(write_set)]


def _dated(noted: Noted, decided_us: int, rows: Sequence[Row]) -> None:
    """Adds rows with the time of the record that they come from."""
    for row in rows:
        row["decided_us"] = decided_us
    noted.rows += rows
