"""A member's mind on disk: certification info, outcomes, view and place in the log, in one write.

The rule it keeps: the log has all of it, so it need not be written at once. What is committed
before it is saved is skipped when a restarted member reads it again; what is saved first waits in
the relay queue.
"""

import json
import time
from hashlib import blake2b

from applier.relay_queue import RelayQueue
from certifier.errors import LogRewritten
from certifier.info_store import CertificationInfoStore
from certifier.records import Verdict, position_of
from certifier.store import Batch, Family, Store, integer_key
from members.decisions import place_key
from members.fragment_store import drop
from members.member import Member
from members.member_checkpoint import checkpoint_of, restore
from members.member_state import Delivered
from members.outbox import Outbox, forget, put, tell_given_up
from members.outcome_log import OutcomeLog
from members.total_order import Delivery, LogIdentity, check_same_log

MEMBER_KEY = b"member"
LOG_IDENTITY_KEY = b"log"
LAST_MESSAGE_KEY = b"last message"
FENCE_KEY = b"fence"


class MindStore:
    """The place of one member's mind in its store."""

    def __init__(self, store: Store, relay_queue: RelayQueue, outbox: Outbox | None = None) -> None:
        """`outbox`: where decisions wait for the certification log, if the member keeps one."""
        self._store = store
        self._relay_queue = relay_queue
        self._outbox = outbox
        self._outcome_log = OutcomeLog(store)
        self._info_store: CertificationInfoStore
        self._last: Delivery | None = None
        self._failed: Exception | None = None

    def load(self, mind: Member) -> None:
        """Brings a new mind to what was saved, if anything was.

        Raises:
            CorruptStore: Some of it is not there.
        """
        saved = json.loads(self._store.get(Family.META, MEMBER_KEY) or b"{}")
        if saved:
            restore(mind, saved)
        self._info_store = CertificationInfoStore(self._store, mind.certifier)
        self._info_store.load()
        if saved and "verdicts" not in saved:  # Of an earlier release.
            mind.counters.earlier[Verdict.CERTIFIED] = mind.certifier.window.newest_version
        mind.digests.note(mind.log_sequence, mind.certifier.digest())
        mind.outcomes = self._outcome_log.load(mind.settings.outcomes_max)
        mind.decisions.follow(mind.certifier)
        if self._outbox is None:
            rows = forget(self._store, keeps=mind.decisions.is_on)
            if rows:
                why = "it was switched off before all of it was in files"
                tell_given_up(mind.me.name, rows, why)
        elif not self._outbox.has_begun:
            batch = self._store.batch()
            block = self._begin_history(mind, batch, 0)
            self._store.write(batch)
            self._outbox.added(1, block)

    def delivered(self, last: Delivery) -> None:
        """Notes what the mind has taken: the next time that it is saved, it is as of there."""
        self._last = last

    def save(self, mind: Member, unsaved: Delivered, applied_position: int) -> None:
        """Stores the mind as it is, and of what it has delivered since the last call what is not
        committed yet. After an error every call raises it: what was to be stored then is lacking.
        """
        if self._failed is not None:
            raise self._failed
        try:
            self._save(mind, unsaved, applied_position)
        except Exception as error:
            self._failed = error.with_traceback(None)
            raise

    def _save(self, mind: Member, unsaved: Delivered, applied_position: int) -> None:
        batch = self._store.batch()
        waiting = [entry for entry in unsaved.entries if entry.position > applied_position]
        self._relay_queue.append(batch, waiting)
        if self._info_store.certifier is not mind.certifier:  # The group's first settings make it.
            self._info_store = CertificationInfoStore(self._store, mind.certifier)
        self._info_store.save(batch)
        self._outcome_log.save(batch, mind.outcomes)
        drop(batch, unsaved.dropped)
        rows, block = len(unsaved.noted), b""
        if self._outbox and (self._outbox.is_full or self._outbox.is_superseded):
            rows, block = 1, self._begin_history(mind, batch, rows)
        elif rows:
            block = mind.decisions.encode(unsaved.noted)
            (self._outbox.put if self._outbox else put)(batch, unsaved.noted, block)
        batch.put(Family.META, MEMBER_KEY, json.dumps(checkpoint_of(mind)).encode())
        if self._last is not None:
            assert self._last.sequence == mind.log_sequence, f"{self._last.sequence} is the last"
            batch.put(Family.META, LAST_MESSAGE_KEY, _digest(self._last))
        self._store.write(batch)
        self._relay_queue.written()
        if self._outbox and rows:
            self._outbox.added(rows, block)

    def _begin_history(self, mind: Member, batch: Batch, unsaved_rows: int) -> bytes:
        """Adds a history's first row to a batch, as of where the mind is now. `unsaved_rows`: come
        before that, and are given up with what waits.
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
            tell_given_up(mind.me.name, rows, f"{why}: another history begins here")
        position = position_of(mind.log_sequence + 1, 0)
        noted = mind.decisions.start(position, time.time_ns() // 1000)
        self._outbox.begin(batch, place_key(noted))
        block = mind.decisions.encode(noted)
        self._outbox.put(batch, noted, block)
        return block

    def check_last(self, found: Delivery | None) -> None:
        """Raises LogRewritten if the log has another message where the last one was read that this
        store was saved after; what the log does not have any more cannot be compared.
        """
        read = self._store.get(Family.META, LAST_MESSAGE_KEY)
        if found is None or read is None or not read.startswith(integer_key(found.sequence)):
            return
        now = _digest(found)
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

    def identity(self) -> LogIdentity | None:
        """The log that this store was made from; None: there is none yet."""
        saved = self._store.get(Family.META, LOG_IDENTITY_KEY)
        return None if saved is None else LogIdentity.decode(saved)

    def fence(self) -> str:
        """Why the member fenced itself, in an earlier run too; empty if it did not."""
        return (self._store.get(Family.META, FENCE_KEY) or b"").decode()

    def set_fence(self, explanation: str) -> None:
        """Keeps the member fenced until its operator acts, whatever becomes of this run."""
        self._put(FENCE_KEY, explanation.encode())
        self._store.flush()

    def clear_fence(self) -> None:
        """The operator has acted. Without a fence nothing is written: the disk may be full."""
        if not self.fence():
            return
        batch = self._store.batch()
        batch.delete(Family.META, FENCE_KEY)
        self._store.write(batch)
        self._store.flush()

    def _put(self, key: bytes, value: bytes) -> None:
        batch = self._store.batch()
        batch.put(Family.META, key, value)
        self._store.write(batch)


def _digest(delivery: Delivery) -> bytes:
    """A message's place, and a hash of it."""
    return integer_key(delivery.sequence) + blake2b(delivery.payload, digest_size=8).digest()
