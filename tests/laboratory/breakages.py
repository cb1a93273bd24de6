"""Wrong groups on purpose: the checkers must find each of them, under its right name.

Each breakage breaks one rule of the reference store at one place. It says which findings have to
be there, and which others may follow from them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from unittest.mock import patch

from tests.laboratory.history import FinalState, Outcome
from tests.laboratory.mutants import Mutant, mutant
from tests.laboratory.reference_store import Copy, ReferenceStore, StoreSession, Writes
from tests.laboratory.transactions import Answer, Begin, Commit, Decision, Request

RARELY = 0.03

_advance = ReferenceStore.advance
_apply = ReferenceStore.apply
_conflicts = ReferenceStore.conflicts
_final = ReferenceStore.final
_order = ReferenceStore.order
_answer = StoreSession.answer
_read = Copy.read


def allow_lost_updates(
    self: ReferenceStore, snapshot: int, writes: Writes, read_keys: Sequence[bytes]
) -> bool:
    """A certifier that does not look at the write set."""
    del writes
    return _conflicts(self, snapshot, {}, read_keys)


def ignore_read_set(
    self: ReferenceStore, snapshot: int, writes: Writes, read_keys: Sequence[bytes]
) -> bool:
    """A certifier that lets a serializable transaction pass though what it read has changed."""
    del read_keys
    return _conflicts(self, snapshot, writes, ())


def read_committed(self: Copy, key: bytes, version: int) -> bytes | None:
    """A member whose snapshots move on."""
    return _read(self, key, max(version, self.version))


def keep_aborted(self: StoreSession, request: Request) -> Answer:
    """A member that says conflict of what it has committed, now and then."""
    answer = _answer(self, request)
    if isinstance(request, Commit) and request.writes and isinstance(answer, Decision):
        if answer.outcome is Outcome.COMMITTED and self.store.dice.random() < RARELY:
            return Decision(Outcome.CONFLICT)
    return answer


def acknowledge_and_drop(self: ReferenceStore, key: bytes, member: str, writes: Writes) -> int:
    """A member that acknowledges what never reaches the log, now and then."""
    if self.dice.random() < RARELY:
        return len(self.log)
    return _order(self, key, member, writes)


def order_twice(self: ReferenceStore, key: bytes, member: str, writes: Writes) -> int:
    """A group that certifies a repeated transaction again, some time later."""
    if self.log and self.dice.random() < RARELY:
        _order(self, *self.log[max(0, len(self.log) - 5)])
    return _order(self, key, member, writes)


def tear_transactions(self: ReferenceStore, key: bytes, member: str, writes: Writes) -> int:
    """A group that keeps only the first write of a transaction, now and then."""
    if self.dice.random() < RARELY:
        writes = dict(list(writes.items())[:1])
    return _order(self, key, member, writes)


def claim_other_version(self: ReferenceStore, key: bytes, member: str, writes: Writes) -> int:
    """A member that answers with the version of the transaction before, now and then."""
    version = _order(self, key, member, writes)
    return max(1, version - (self.dice.random() < RARELY))


def fork_order(self: ReferenceStore, copy: Copy, version: int) -> None:
    """A member that shows some transactions before others that come before them in the log."""
    while copy.version < version:
        first = copy.version + 1
        following: list[int] = []
        if copy.member == "m2" and self.dice.random() < 0.2:
            following += _independent(self.log, first)
        for each in (*following, first):
            copy.version += 1
            _apply(self, copy, each)
        if following:
            copy.applied.sort(key=lambda applied: applied.version)


def _independent(log: Sequence[tuple[bytes, str, Writes]], version: int) -> Iterator[int]:
    """Up to eight transactions after one, as far as they write none of its rows."""
    writes = log[version - 1][2].keys()
    later = range(version + 1, min(version + 9, len(log) + 1))
    return takewhile(lambda each: writes.isdisjoint(log[each - 1][2]), later)


def skip_some(self: ReferenceStore, copy: Copy, version: int) -> None:
    """A member that leaves out transactions of its relay queue."""
    if copy.member != "m2" or self.dice.random() > RARELY:
        _apply(self, copy, version)


def apply_twice(self: ReferenceStore, copy: Copy, version: int) -> None:
    """A member that applies transactions of its relay queue again."""
    _apply(self, copy, version)
    if copy.member == "m2" and version > 5 and self.dice.random() < RARELY:
        _apply(self, copy, version - 5)


def commit_never(self: ReferenceStore, copy: Copy, version: int) -> None:
    """A member that has no commit of transactions that it applied."""
    _apply(self, copy, version)
    if copy.member == "m2" and self.dice.random() < RARELY:
        copy.applied[-1] = replace(copy.applied[-1], committed_tick=0)


def start_early(self: ReferenceStore, copy: Copy, version: int) -> None:
    """An applier that starts transactions before those that they depend on have committed."""
    _apply(self, copy, version)
    applied = copy.applied[-1]
    if copy.member == "m2" and applied.started_tick > 40:
        copy.applied[-1] = replace(applied, started_tick=applied.started_tick - 40)


def forget_sessions(self: StoreSession, request: Request) -> Answer:
    """A member that does not wait for what a session has seen, or for the latest state."""
    if isinstance(request, Begin):
        request = Begin(0, False, request.serializable)
    return _answer(self, request)


def other_digest(self: ReferenceStore, member: str) -> FinalState:
    """A member whose state of certification differs."""
    final = _final(self, member)
    return replace(final, digest="other") if member == "m2" else final


def same_gtid(self: ReferenceStore, member: str) -> FinalState:
    """A group that gives a GTID to two transactions."""
    final = _final(self, member)
    applied = list(final.applied)
    applied[-1] = replace(applied[-1], gtid=applied[0].gtid)
    return replace(final, applied=tuple(applied))


def other_decision(self: ReferenceStore, member: str) -> FinalState:
    """A member that has another transaction at a place."""
    final = _final(self, member)
    applied = list(final.applied)
    if member == "m2":
        applied[7] = replace(applied[7], items=(1,))
    return replace(final, applied=tuple(applied))


@contextmanager
def read_dirty() -> Iterator[None]:
    """Members that show for a while what they have refused to commit."""
    dirty: dict[bytes, bytes | None] = {}

    def answer(self: StoreSession, request: Request) -> Answer:
        if self.store.dice.random() < 0.3:
            dirty.clear()
        found = _answer(self, request)
        if isinstance(request, Commit) and found == Decision(Outcome.CONFLICT):
            dirty.update(request.writes)
        return found

    def read(self: Copy, key: bytes, version: int) -> bytes | None:
        return dirty[key] if key in dirty else _read(self, key, version)

    def final(self: ReferenceStore, member: str) -> FinalState:
        dirty.clear()
        return _final(self, member)

    with (
        patch.object(StoreSession, "answer", answer),
        patch.object(Copy, "read", read),
        patch.object(ReferenceStore, "final", final),
    ):
        yield


_TORN = (
    "bank-balance bank-total lost-append lost-update incompatible-order set-lost session write-skew"
)
"""What may follow where rows are no longer those of whole transactions, one after the other."""
_CYCLES = "G-single G-nonadjacent G2 snapshot-version"
"""What may follow where states are read that the order does not have."""

MUTANTS = {
    "acknowledge-and-drop": mutant(
        ReferenceStore,
        "order",
        acknowledge_and_drop,
        "acknowledged-lost bank-balance lost-append lost-update set-lost version-order",
        "session snapshot-version stale version-differs",
    ),
    "allow-lost-updates": mutant(
        ReferenceStore,
        "conflicts",
        allow_lost_updates,
        "bank-total lost-append lost-update",
        f"{_TORN} {_CYCLES}",
    ),
    "apply-twice": mutant(
        ReferenceStore,
        "apply",
        apply_twice,
        "relay-twice",
        f"{_TORN} {_CYCLES} relay-overlap rows-differ set-differs versions-not-dense",
    ),
    "claim-other-version": mutant(
        ReferenceStore,
        "order",
        claim_other_version,
        "version-differs version-order",
        "session snapshot-version stale",
    ),
    "commit-never": mutant(ReferenceStore, "apply", commit_never, "relay-skipped", "relay-overlap"),
    "forget-sessions": mutant(StoreSession, "answer", forget_sessions, "session stale"),
    "fork-order": mutant(
        ReferenceStore,
        "advance",
        fork_order,
        "relay-order",
        f"{_TORN} {_CYCLES} relay-overlap stale",
    ),
    "ignore-read-set": mutant(ReferenceStore, "conflicts", ignore_read_set, "G2 write-skew"),
    "keep-aborted": mutant(
        StoreSession, "answer", keep_aborted, "G1a aborted-committed bank-balance set-aborted"
    ),
    "order-twice": mutant(
        ReferenceStore,
        "order",
        order_twice,
        "certified-twice version-differs",
        f"{_TORN} {_CYCLES} stale version-order",
    ),
    "other-decision": mutant(ReferenceStore, "final", other_decision, "decision-differs"),
    "other-digest": mutant(ReferenceStore, "final", other_digest, "digest-differs"),
    "read-committed": mutant(Copy, "read", read_committed, "internal snapshot-version", _CYCLES),
    "read-dirty": Mutant(read_dirty, frozenset(["G1a"]), frozenset([*_TORN.split(), "internal"])),
    "same-gtid": mutant(ReferenceStore, "final", same_gtid, "gtid-twice"),
    "skip-some": mutant(
        ReferenceStore,
        "apply",
        skip_some,
        "acknowledged-lost rows-differ versions-not-dense",
        f"{_TORN} {_CYCLES} set-differs relay-overlap",
    ),
    "start-early": mutant(ReferenceStore, "apply", start_early, "relay-overlap"),
    "tear-transactions": mutant(
        ReferenceStore, "order", tear_transactions, "bank-balance bank-total lost-append", _TORN
    ),
}
