"""A group in a dictionary: snapshot isolation and serializability as they are defined, and no more.

It is what the checkers are tested against: its histories are right, until one of `breakages` is
installed. One thread uses it; what overlaps is decided by who is asked next.
"""

import random
from collections.abc import Mapping, Sequence
from zlib import crc32

from groupcert.members.demo.group_checks import Applied
from tests.laboratory.history import FinalState, Outcome
from tests.laboratory.transactions import (
    Answer,
    Begin,
    Commit,
    Decision,
    Found,
    Get,
    Opened,
    Put,
    Request,
)

MEMBERS = ("m1", "m2", "m3")
Writes = Mapping[bytes, bytes | None]


class Copy:
    """What one member has applied: the values of each row, each with the place where it came."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.rows: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self.applied: list[Applied] = []
        self.version = 0

    def read(self, key: bytes, version: int) -> bytes | None:
        """The row as it was after so many transactions."""
        values = self.rows.get(key, ())
        return next((value for place, value in reversed(values) if place <= version), None)


class ReferenceStore:
    """The log of a group, and the copies of its members, which are late until they are asked."""

    def __init__(self, dice: random.Random, *, unknown: float = 0.05) -> None:
        self.dice = dice
        self.unknown = unknown
        self.log: list[tuple[bytes, str, Writes]] = []
        self.newest: dict[bytes, int] = {}
        self.copies = {name: Copy(name) for name in MEMBERS}

    def conflicts(self, snapshot: int, writes: Writes, read_keys: Sequence[bytes]) -> bool:
        """Whether somebody wrote one of the rows after the snapshot."""
        return any(self.newest.get(key, 0) > snapshot for key in (*writes, *read_keys))

    def order(self, transaction_id: bytes, member: str, writes: Writes) -> int:
        """Gives a transaction its place, which is its version."""
        self.log.append((transaction_id, member, writes))
        self.newest.update(dict.fromkeys(writes, len(self.log)))
        return len(self.log)

    def advance(self, copy: Copy, version: int) -> None:
        """Has a member apply what it lacks, up to a version."""
        while copy.version < version:
            copy.version += 1
            self.apply(copy, copy.version)

    def apply(self, copy: Copy, version: int) -> None:
        """Has a member apply one transaction as its next one."""
        transaction_id, origin, writes = self.log[version - 1]
        for key, value in writes.items():
            copy.rows.setdefault(key, []).append((copy.version, value))
        tick = copy.applied[-1].committed_tick if copy.applied else 0
        is_local = origin == copy.member
        copy.applied.append(
            Applied(
                transaction_id=transaction_id,
                gtid=f"reference:{version}",
                version=version,
                clock_run=0,
                last_committed=0 if is_local else version,
                sequence_number=0 if is_local else version + 1,
                started_tick=0 if is_local else tick + 1,
                committed_tick=tick + 2,
                items=tuple(sorted(map(crc32, writes))),
            )
        )

    def final(self, member: str) -> FinalState:
        """A member that has applied everything."""
        copy = self.copies[member]
        self.advance(copy, len(self.log))
        found = {key: copy.read(key, copy.version) for key in copy.rows}
        return FinalState(
            member=member,
            version=copy.version,
            digest=str(len(self.log)),
            gtid_executed=f"reference:1-{len(self.log)}",
            rows={key: value for key, value in sorted(found.items()) if value is not None},
            applied=tuple(copy.applied),
        )


class StoreSession:
    """Answers the requests of one process."""

    def __init__(self, store: ReferenceStore, process: int) -> None:
        self.store = store
        self._process = process
        self._transactions = 0
        self._copy: Copy
        self._snapshot = 0
        self._transaction_id = b""

    def answer(self, request: Request) -> Answer:
        """Does what is asked for, at once."""
        store = self.store
        match request:
            case Begin():
                return self._begin(request)
            case Get(keys=keys):
                return Found({key: self._copy.read(key, self._snapshot) for key in keys})
            case Put():
                raise AssertionError("it takes writes at the commit alone")
            case Commit(writes=writes) if not writes:
                return Decision(Outcome.COMMITTED, self._snapshot)
            case Commit(writes=writes, read_keys=read_keys):
                is_unknown = store.dice.random() < store.unknown
                if is_unknown and store.dice.random() < 0.5:
                    return Decision(Outcome.UNKNOWN, cause="never arrived")
                if store.conflicts(self._snapshot, writes, read_keys):
                    return Decision(Outcome.UNKNOWN if is_unknown else Outcome.CONFLICT)
                version = store.order(self._transaction_id, self._copy.member, writes)
                if is_unknown:
                    return Decision(Outcome.UNKNOWN, cause="answer lost")
                store.advance(self._copy, version)
                return Decision(Outcome.COMMITTED, version)

    def _begin(self, begin: Begin) -> Answer:
        store = self.store
        if store.dice.random() < 0.01:
            return Decision(Outcome.UNAVAILABLE, cause="no member takes it")
        self._copy = store.copies[store.dice.choice(MEMBERS)]
        newest = len(store.log)
        oldest = newest if begin.latest else max(begin.version_min, self._copy.version)
        self._snapshot = store.dice.randint(oldest, max(oldest, newest))
        store.advance(self._copy, self._snapshot)
        self._transactions += 1
        self._transaction_id = b"%d-%d" % (self._process, self._transactions)
        return Opened(self._copy.member, self._snapshot, self._transaction_id)
