"""Traces: JSON lines of the records that reached certification, and the answers of an observer.

A trace is certified by the same certifier as a member's log; nothing here decides. The format is in
`certifier/history/README.md`: items are texts such as `shop.orders/PRIMARY/42`, and snapshots are
GTID sets.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from ..core import Certifier
from ..errors import InvalidGtid, InvalidGtidSet, InvalidTrace, InvalidWriteSet
from ..gtid import Gtid, parse_gtid
from ..gtid_set import GtidSet
from ..position import position_of
from ..records import (
    Collected,
    Conflict,
    ExecutedElsewhere,
    GarbageCollection,
    Outcome,
    Record,
    Transaction,
    Verdict,
    ViewChange,
)
from ..write_set import item_from_text

JsonObject = dict[str, object]
Value = TypeVar("Value")

LINE_CHARACTERS_MAX = 64 << 20
WRITE_SET_ITEMS_MAX = 1_000_000
_DECISIONS = {verdict: verdict.name.lower() for verdict in Verdict}


@dataclass(slots=True)
class ReplaySummary:
    """The counts of a replay so far."""

    certified: int = 0
    conflict: int = 0
    too_old: int = 0
    refused: int = 0
    view_changes: int = 0
    garbage_collections: int = 0
    purged: int = 0
    dependent: int = 0
    """Certified transactions that wait for another one: `last_committed` is above the window's
    edge.
    """


class Follower(Protocol):
    """Is informed of each record of a trace, right after the certifier took it."""

    def transaction(
        self,
        transaction: Transaction,
        outcome: Outcome,
        line: JsonObject,
        texts: tuple[Sequence[str], Sequence[str]],
    ) -> None:
        """Takes a decided transaction; `texts` are its written and its read items as texts."""
        ...

    def record(self, record: Record, line: JsonObject) -> None:
        """Takes a record that is no transaction."""
        ...


class Replay:
    """Certifies a trace line by line, as `observer` sees it.

    `local` of a line decides whether its transaction is local; without it, the observer's are.
    With `local_is_remote` none is, as at a replica.
    """

    def __init__(
        self,
        certifier: Certifier,
        observer: str | None = None,
        follower: Follower | None = None,
        *,
        local_is_remote: bool = False,
    ) -> None:
        self.summary = ReplaySummary()
        self._certifier = certifier
        self._observer = observer
        self._follower = follower
        self._local_is_remote = local_is_remote
        self._line = 0

    @property
    def line(self) -> int:
        """Number of the line that was replayed last; 0 before the first one."""
        return self._line

    def replay(self, text: str) -> JsonObject | None:
        """Certifies the next line and returns its outcome; None for an empty line.

        Raises:
            InvalidTrace: the line is not of the format; it names the line and what was expected.
        """
        self._line += 1
        if not text.strip():
            return None
        line = self._object(text)
        match self._get(line, "type", str):
            case "transaction":
                return self._transaction(line)
            case "view_change":
                return self._view_change(line)
            case "garbage_collection":
                return self._garbage_collection(line)
            case other:
                raise self._invalid(
                    f"type is {other!r}", "transaction, view_change or garbage_collection"
                )

    def _transaction(self, line: JsonObject) -> JsonObject:
        write_set = self._items(line, "write_set")
        read_set = self._items(line, "read_set") if line.get("read_set") is not None else {}
        member = self._get(line, "member", str)
        is_local = self._get(line, "local", bool, member == self._observer)
        transaction = Transaction(
            position=self._position(),
            origin=member,
            snapshot=self._gtid_set(line, "snapshot_version"),
            write_set=list(write_set),
            read_set=list(read_set),
            gtid=self._gtid(line),
            local=is_local and not self._local_is_remote,
        )
        edge = self._certifier.clock.last_committed_global
        outcome = self._certifier.certify(transaction)
        decision = _DECISIONS[outcome.verdict]
        setattr(self.summary, decision, getattr(self.summary, decision) + 1)
        self.summary.dependent += (outcome.last_committed or 0) > edge
        if self._follower is not None:
            texts = list(write_set.values()), list(read_set.values())
            self._follower.transaction(transaction, outcome, line, texts)
        return self._outcome_line(decision, outcome, read_set | write_set)

    def _outcome_line(
        self, decision: str, outcome: Outcome, texts: Mapping[int, str]
    ) -> JsonObject:
        line: JsonObject = {
            "type": "transaction",
            "gtid": str(outcome.gtid) if outcome.gtid else None,
            "decision": decision,
        }
        if outcome.verdict is Verdict.CERTIFIED:
            line["last_committed"] = outcome.last_committed
            line["sequence_number"] = outcome.sequence_number
        elif outcome.verdict is Verdict.CONFLICT:
            conflict = cast(Conflict, outcome.conflict)
            line["item"] = texts[conflict.item]
            line["winner_gtid"] = str(conflict.winner_gtid)
        else:
            line["reason"] = outcome.reason
        return line

    def _view_change(self, line: JsonObject) -> JsonObject:
        if line.get("executed") is not None:
            executed = self._gtid_set(line, "executed")
            self._deliver(ExecutedElsewhere(self._position(), executed), line)
        joined = self._get(line, "joined", list, [])
        stamps = self._deliver(ViewChange(self._position(), self._observer in joined), line)
        last_committed, sequence_number = cast(tuple[int, int], stamps)
        self.summary.view_changes += 1
        return {
            "type": "view_change",
            "last_committed": last_committed,
            "sequence_number": sequence_number,
        }

    def _garbage_collection(self, line: JsonObject) -> JsonObject:
        stable = self._gtid_set(line, "stable_set")
        record = GarbageCollection(self._position(), stable)
        collected = cast(Collected, self._deliver(record, line))
        self.summary.garbage_collections += 1
        self.summary.purged += collected.purged
        return {
            "type": "garbage_collection",
            "purged": collected.purged,
            "last_committed_global": collected.last_committed_global,
        }

    def _deliver(self, record: Record, line: JsonObject) -> object:
        became = self._certifier.deliver(record)
        if self._follower is not None:
            self._follower.record(record, line)
        return became

    def _position(self) -> int:
        return position_of(self._line, 0)

    def _object(self, text: str) -> JsonObject:
        if len(text) > LINE_CHARACTERS_MAX:
            raise self._invalid(
                f"it has {len(text)} characters", f"at most {LINE_CHARACTERS_MAX} a line"
            )
        try:
            line = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise self._invalid(f"it is not JSON ({error})", "one JSON object a line") from None
        if not isinstance(line, dict):
            raise self._invalid(f"it is a JSON {type(line).__name__}", "one JSON object a line")
        return line

    def _get(
        self, line: JsonObject, name: str, kind: type[Value], default: Value | None = None
    ) -> Value:
        value = line.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind):
            raise self._invalid(f"{name} is {_shown(value)}", f"{name}: a JSON {_JSON_NAMES[kind]}")
        return value

    def _items(self, line: JsonObject, name: str) -> dict[int, str]:
        texts = self._get(line, name, list)
        if len(texts) > WRITE_SET_ITEMS_MAX:
            raise self._invalid(
                f"{name} has {len(texts)} items", f"at most {WRITE_SET_ITEMS_MAX} a transaction"
            )
        for text in texts:
            if not isinstance(text, str):
                raise self._invalid(f"{name} holds {_shown(text)}", "items that are strings")
        try:
            return {item_from_text(text): text for text in texts}
        except InvalidWriteSet as error:
            raise self._invalid(f"{name}: {error}", "items that are text in UTF-8") from None

    def _gtid_set(self, line: JsonObject, name: str) -> GtidSet:
        try:
            return GtidSet.parse(self._get(line, name, str))
        except InvalidGtidSet as error:
            raise self._invalid(f"{name}: {error}", "a GTID set such as <uuid>:1-5:7") from None

    def _gtid(self, line: JsonObject) -> Gtid | None:
        if line.get("gtid") is None:
            return None
        try:
            return parse_gtid(self._get(line, "gtid", str))
        except InvalidGtid as error:
            raise self._invalid(f"gtid: {error}", "null or a GTID such as <uuid>:7") from None

    def _invalid(self, problem: str, expected: str) -> InvalidTrace:
        return InvalidTrace(line=self._line, problem=problem, expected=expected)


_JSON_NAMES: Mapping[type, str] = {str: "string", bool: "true or false", list: "array"}


def _shown(value: object) -> str:
    return "missing" if value is None else json.dumps(value)[:80]
