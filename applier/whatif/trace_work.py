"""A trace as work: the cost and the dependencies of its certified transactions on a replica.

A trace is certified by `history.trace`, as `groupcert replay` does; transactions that were not
certified never reached a replica and are left out. All transactions count as remote: a replica
executes them wherever they came from.

Fields that a line does not have are derived: databases and tables from the texts of its items; the
commit parent from the size of its snapshot, because an optimistic transaction reads the counter of
WL#6314 when it takes its snapshot; the lock interval of WL#7165 from the newest transaction in the
snapshot. A transaction without write set locks everything: its interval is 1.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from groupcert.applier.queue.parts import database_of, table_of
from groupcert.applier.source.header import SourceHeader
from groupcert.applier.whatif.workload import Work
from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.errors import InvalidTrace
from groupcert.certifier.gtid import Gtid, parse_gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.history.trace import JsonObject, Replay, ReplaySummary
from groupcert.certifier.history.trace_fields import names_of, number_of
from groupcert.certifier.write_set import item_from_text

LOCK_INTERVAL_MAX = 65_535
"""Longest lock interval (WL#7165): a longer one counts as this, safely, with less parallelism."""
_NUMBERS = ("domain_id", "commit_parent", "commit_id", "duration_us")


@dataclass(frozen=True, slots=True)
class _Known:
    """The fields of a line that certification does not need."""

    texts: Sequence[str]
    databases: tuple[str, ...] | None
    numbers: Mapping[str, int]
    snapshot: GtidSet


class TraceWork:
    """Reads a trace line by line; `summary` counts the decisions about its transactions."""

    def __init__(
        self, options: CertifierOptions, *, lock_interval_max: int = LOCK_INTERVAL_MAX
    ) -> None:
        """Creates the certifier; `options` as for `groupcert replay`."""
        self._replay = Replay(Certifier(options))
        self._line = 0
        self._newest: deque[Gtid] = deque(maxlen=lock_interval_max)
        self._lock_interval_max = lock_interval_max
        self._transactions = 0
        self._alone = 0
        self._snapshot_text = ""
        self._snapshot = GtidSet()

    @property
    def summary(self) -> ReplaySummary:
        """Decisions so far."""
        return self._replay.summary

    def read(self, lines: Iterable[str]) -> Iterator[Work]:
        """Yields the work of a trace's lines.

        Raises:
            InvalidTrace: a line is not of the format, or there is no certified transaction.
        """
        for text in lines:
            self._line += 1
            work = self._work(text)
            if work:
                yield work
        if not self._transactions:
            refused = self.summary.conflict + self.summary.too_old + self.summary.refused
            raise InvalidTrace(
                line=max(self._line, 1),
                problem=f"the trace ends without a certified transaction ({refused} others)",
                expected="one at least to schedule",
            )

    def _work(self, text: str) -> Work | None:
        if '"local"' in text:
            text = self._as_remote(text)
        answer = self._replay.replay(text)
        if not answer or answer["type"] == "garbage_collection":
            return None
        if answer["type"] == "view_change":
            return Work(None)
        if answer["decision"] != "certified":
            return None
        known = self._known(json.loads(text))
        gtid = parse_gtid(cast(str, answer["gtid"]))
        items = tuple(dict.fromkeys(map(item_from_text, known.texts)))
        interval = self._lock_interval(known.snapshot, has_rows=bool(items))
        self._newest.appendleft(gtid)
        return Work(
            gtid,
            cast(int, answer["last_committed"]),
            cast(int, answer["sequence_number"]),
            interval,
            self._header(known, items),
            known.texts,
            len(items),
            known.numbers.get("duration_us"),
        )

    def _as_remote(self, text: str) -> str:
        """Returns the line without its flag `local`; a damaged line unchanged."""
        try:
            line = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            return text
        if isinstance(line, dict) and line.get("local") is True:
            line["local"] = False
            return json.dumps(line)
        return text

    def _known(self, line: JsonObject) -> _Known:
        """Returns the line's own fields; certification has checked those that it reads."""
        snapshot_text = cast(str, line["snapshot_version"])
        if snapshot_text != self._snapshot_text:
            self._snapshot_text = snapshot_text
            self._snapshot = GtidSet.parse(snapshot_text)
        numbers = {name: number_of(line, name, self._line) for name in _NUMBERS}
        databases = names_of(line, "databases", self._line)
        return _Known(
            texts=list(dict.fromkeys(cast(list[str], line["write_set"]))),
            databases=None if databases is None else tuple(sorted(set(databases))),
            numbers={name: number for name, number in numbers.items() if number is not None},
            snapshot=self._snapshot,
        )

    def _header(self, known: _Known, items: tuple[int, ...]) -> SourceHeader:
        databases, tables = known.databases, None
        if items:
            names = {table_of(text.encode()) for text in known.texts}
            tables = tuple(sorted(names))
            if databases is None:
                databases = tuple(sorted(set(map(database_of, names))))
        numbers = known.numbers
        return SourceHeader(
            commit_parent=numbers.get("commit_parent", known.snapshot.count() + 1),
            commit_id=numbers.get("commit_id", 0),
            domain_id=numbers.get("domain_id", 0),
            databases=databases,
            tables=tables,
            items=items,
        )

    def _lock_interval(self, snapshot: GtidSet, *, has_rows: bool) -> int:
        """Returns how many transactions back the snapshot's newest is. Cost: O(the result)."""
        self._transactions += 1
        if not has_rows:
            self._alone = self._transactions
            return 1
        longest = min(self._transactions, self._lock_interval_max)
        if self._alone:
            longest = min(longest, self._transactions - self._alone)
        for back, gtid in enumerate(self._newest, 1):
            if back >= longest or gtid in snapshot:
                return min(back, longest)
        return longest
