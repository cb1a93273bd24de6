"""Stores a member's state, in one write: certification info, outcomes, view, position in the log.

The rule it keeps: the log has all of it, so it need not be written at once. What is committed
before it is saved is skipped when a restarted member reads it again; what is saved first waits in
the relay queue.

`OutcomeLog` stores outcomes by transaction id, so that a restarted member answers a retry as the
others do: after a restart the store gives what `OutcomeTable` remembered, the same outcomes, in the
same two generations. Of a conflict only the verdict is kept.
"""

import json
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from ...applier.queue.relay_queue import RelayQueue
from ...certifier.errors import LogRewritten
from ...certifier.gtid import Gtid
from ...certifier.outcomes import Doubtful, OutcomeTable
from ...certifier.position import position_of
from ...certifier.records import Outcome, Verdict
from ...certifier.storage.info_store import CertificationInfoStore
from ...certifier.storage.store import COPY_KEY, Batch, Family, Store, integer_key
from ..certification_log.outbox import Outbox, forget, put, tell_given_up
from ..core.effects import Delivered
from ..core.member import Member
from ..core.member_checkpoint import checkpoint_of, restore
from ..core.noted_decisions import place_key
from ..large_transactions.fragment_store import drop
from ..total_order.port import Delivery, LogIdentity, check_same_log

MEMBER_KEY = b"member"
LOG_IDENTITY_KEY = b"log"
LAST_MESSAGE_KEY = b"last message"
FENCE_KEY = b"fence"


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


class StateStore:
    """The stored state of one member."""

    def __init__(self, store: Store, relay_queue: RelayQueue, outbox: Outbox | None = None) -> None:
        """Opens the state in `store`; `outbox` holds decisions for the certification log, if the
        member keeps one.
        """
        self._store = store
        self._relay_queue = relay_queue
        self._outbox = outbox
        self._outcome_log = OutcomeLog(store)
        self._info_store: CertificationInfoStore
        self._last: Delivery | None = None
        self._failed: Exception | None = None

    def load(self, member: Member) -> None:
        """Sets a new member to the state that was saved, if there is one.

        Raises:
            CorruptStore: Some of it is not there.
        """
        saved = json.loads(self._store.get(Family.META, MEMBER_KEY) or b"{}")
        if saved:
            restore(member, saved)
        self._info_store = CertificationInfoStore(self._store, member.certifier)
        self._info_store.load()
        member.digests.note(member.log_sequence, member.certifier.digest())
        member.outcomes = self._outcome_log.load(member.settings.outcomes_max)
        member.decisions.follow(member.certifier)
        if not member.decisions.is_on:
            rows = forget(self._store)
            if rows:
                why = "it was switched off before all of it was in files"
                tell_given_up(member.me.name, rows, why)
        elif self._outbox and not self._outbox.has_begun:
            batch = self._store.batch()
            block = self._begin_history(member, batch, 0)
            self._store.write(batch)
            self._outbox.added(1, block)

    def delivered(self, last: Delivery) -> None:
        """Notes the last message delivered: the next saved state is as of there."""
        self._last = last

    def save(self, member: Member, unsaved: Delivered, applied_position: int) -> None:
        """Stores the state of `member`, and those of its effects since the last call that are not
        committed yet. After an error every call raises it: the state of that call is lacking.
        """
        if self._failed is not None:
            raise self._failed
        try:
            self._save(member, unsaved, applied_position)
        except Exception as error:
            self._failed = error.with_traceback(None)
            raise

    def _save(self, member: Member, unsaved: Delivered, applied_position: int) -> None:
        batch = self._store.batch()
        self._relay_queue.append(batch, unsaved.entries.after(applied_position))
        if self._info_store.certifier is not member.certifier:  # First settings make it.
            self._info_store = CertificationInfoStore(self._store, member.certifier)
        self._info_store.save(batch)
        self._outcome_log.save(batch, member.outcomes)
        drop(batch, unsaved.dropped)
        rows, block = len(unsaved.noted), b""
        if self._outbox and (self._outbox.is_full or self._outbox.is_superseded):
            rows, block = 1, self._begin_history(member, batch, rows)
        elif rows:
            block = member.decisions.encode(unsaved.noted)
            (self._outbox.put if self._outbox else put)(batch, unsaved.noted, block)
        batch.put(Family.META, MEMBER_KEY, json.dumps(checkpoint_of(member)).encode())
        if self._last is not None:
            assert self._last.sequence == member.log_sequence, f"{self._last.sequence} is the last"
            batch.put(Family.META, LAST_MESSAGE_KEY, message_hash(self._last))
        self._store.write(batch)
        self._relay_queue.written()
        if self._outbox and rows:
            self._outbox.added(rows, block)

    def _begin_history(self, member: Member, batch: Batch, unsaved_rows: int) -> bytes:
        """Adds a history's first row to a batch, as of the member's present state. Gives up the
        `unsaved_rows` that come before it, together with those that wait.
        """
        assert self._outbox is not None
        if self._outbox.has_begun:
            why = (
                f"more than certification_log_waiting_bytes_max = {self._outbox.bytes_max} waited "
                "for files"
            )
            if self._outbox.is_superseded:
                why = "its folder is ahead of the member's store, which was put back"
            rows = self._outbox.waiting_rows + unsaved_rows
            tell_given_up(member.me.name, rows, f"{why}: another history begins here")
        position = position_of(member.log_sequence + 1, 0)
        noted = member.decisions.start(position, time.time_ns() // 1000)
        self._outbox.begin(batch, place_key(noted))
        block = member.decisions.encode(noted)
        self._outbox.put(batch, noted, block)
        return block

    def check_last(self, found: Delivery | None) -> None:
        """Raises LogRewritten if the log has another message where this store has read its last
        one; a message that the log no longer has cannot be compared.
        """
        read = self._store.get(Family.META, LAST_MESSAGE_KEY)
        if found is None or read is None or not read.startswith(integer_key(found.sequence)):
            return
        now = message_hash(found)
        if now != read:
            sequence = found.sequence
            raise LogRewritten(sequence=sequence, read=read[8:].hex(), found=now[8:].hex())

    def check_identity(self, identity: LogIdentity) -> None:
        """Raises ForeignLog unless this store was made from that log, or from none yet."""
        saved = self.identity()
        if saved is not None:
            check_same_log(saved, identity)
            return
        self._put(LOG_IDENTITY_KEY, identity.encode())

    def follow(self, identity: LogIdentity) -> None:
        """Makes the store that of a rebuilt log, which goes on from the one that it was made from.
        The fence that the loss of that one has brought ends with it.
        """
        batch = self._store.batch()
        batch.put(Family.META, LOG_IDENTITY_KEY, identity.encode())
        batch.delete(Family.META, FENCE_KEY)
        self._store.write(batch)
        self._store.flush()

    def identity(self) -> LogIdentity | None:
        """Returns the log that this store was made from; None: there is none yet."""
        saved = self._store.get(Family.META, LOG_IDENTITY_KEY)
        return None if saved is None else LogIdentity.decode(saved)

    def fence(self) -> str:
        """Returns the reason of the member's fence, of this run or an earlier one; or empty."""
        return (self._store.get(Family.META, FENCE_KEY) or b"").decode()

    def set_fence(self, explanation: str) -> None:
        """Keeps the member fenced until its operator acts, in later runs as well."""
        self._put(FENCE_KEY, explanation.encode())
        self._store.flush()

    def clear_fence(self) -> None:
        """Removes the fence, as the operator has acted. Writes nothing if there is none: the disk
        may be full.
        """
        if not self.fence():
            return
        batch = self._store.batch()
        batch.delete(Family.META, FENCE_KEY)
        self._store.write(batch)
        self._store.flush()

    def is_copy(self) -> bool:
        """Returns whether the rows are another member's, and were not compared since."""
        return self._store.get(Family.META, COPY_KEY) is not None

    def note_compared(self) -> None:
        """Notes that the rows of a copy are those of the group."""
        batch = self._store.batch()
        batch.delete(Family.META, COPY_KEY)
        self._store.write(batch)

    def _put(self, key: bytes, value: bytes) -> None:
        batch = self._store.batch()
        batch.put(Family.META, key, value)
        self._store.write(batch)


def message_hash(delivery: Delivery) -> bytes:
    """Returns a message's position, and a hash of it."""
    return integer_key(delivery.sequence) + blake2b(delivery.payload, digest_size=8).digest()
