"""Keeps the last conflicts of the group and its hot rows, for people who ask why clients conflict.

Every member certifies every transaction, so each one knows who lost to whom, whoever's clients they
were. Without this only the client that lost is told. Memory is bounded, and a message in which
nobody loses costs nothing (`Counters.note_conflicts`, beside the counts by verdict). Pure.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...certifier.position import log_sequence_of
from ...certifier.records import Conflict, Outcome, Verdict
from .hot_rows import HotRow, HotRows
from .log_records import LogBatch

CONFLICTS_MAX = 64
PAYLOAD_BYTES_MAX = 4 << 10
"""Bytes of changes that are kept to find the key of a row in; of larger ones the item is known."""
NAMES_MAX = 256
NAME_BYTES_MAX = 256
GENERATION_US = 450_000_000
"""Hot rows are counted for so long; the counts of this and of the generation before are shown: of
the last 7.5 to 15 minutes."""


class Lost(NamedTuple):
    """A transaction that lost, and why."""

    decided_us: int
    """When this member read it from the log, in microseconds since 1970."""
    member: str
    """The member whose client it was of."""
    transaction_id: bytes
    payload: bytes
    """Its changes, in which the row's key is; empty: not kept."""
    conflict: Conflict


class ConflictRecord:
    """The last conflicts of one run of a member, and the rows that have most of them."""

    def __init__(self) -> None:
        self._last: deque[Lost] = deque(maxlen=CONFLICTS_MAX)
        self._names: OrderedDict[int, bytes] = OrderedDict()
        self._rows = HotRows()
        self._rows_before = HotRows()
        self._begun_us = self._begun_before_us = 0

    def note(
        self, batch: LogBatch, outcomes: Sequence[Outcome], log_sequence: int, at_us: int
    ) -> None:
        """Notes the conflicts that a message of the log has led to; not again those of transactions
        that were decided before it. Cost: O(transactions), and a microsecond for each conflict.
        """
        for index, outcome in enumerate(outcomes):
            conflict = outcome.conflict
            if conflict is None or log_sequence_of(conflict.position) != log_sequence:
                continue
            logged = batch.transactions[index]
            payload = logged.payload if len(logged.payload) <= PAYLOAD_BYTES_MAX else b""
            self._last.append(Lost(at_us, batch.member, logged.transaction_id, payload, conflict))
            self._generation(at_us).count(conflict.item, at_us, payload)

    def name(self, item: int, key: bytes) -> None:
        """Notes the key of a row over which a client of this member lost; others' are unknown where
        they certify transactions of their own stores.
        """
        self._names[item] = key[:NAME_BYTES_MAX]
        self._names.move_to_end(item)
        if len(self._names) > NAMES_MAX:
            self._names.popitem(last=False)

    def last(self) -> list[Lost]:
        """Returns the last conflicts, the newest first."""
        return [*reversed(self._last)]

    def rows(self, now_us: int) -> tuple[list[HotRow], int]:
        """Returns the counts of rows, for `hottest`, and the time since when."""
        self._generation(now_us)
        return self._rows_before.rows() + self._rows.rows(), self._begun_before_us

    def names(self) -> dict[int, bytes]:
        """Returns the keys of rows that are known by `name`."""
        return dict(self._names)

    def _generation(self, now_us: int) -> HotRows:
        """Returns the rows of the present generation; begins another one when it is time."""
        passed = now_us - self._begun_us
        if passed >= GENERATION_US:
            is_next = passed < 2 * GENERATION_US
            self._rows_before = self._rows if is_next else HotRows()
            self._begun_before_us = self._begun_us if is_next else now_us
            self._rows, self._begun_us = HotRows(), now_us
        return self._rows


def _none_yet() -> list[int]:
    return [0] * (1 + max(Verdict))


@dataclass(slots=True)
class Counters:
    """Transactions since the start, by what became of them."""

    verdicts: list[int] = field(default_factory=_none_yet)
    """Transactions by the verdict's number."""
    earlier: list[int] = field(default_factory=_none_yet)
    """Transactions of the log before those, by verdict, counted in earlier runs or at a donor."""
    local: int = 0
    repeated: int = 0
    conflicts: ConflictRecord = field(default_factory=ConflictRecord)
    """The last of those that lost, and to whom."""
    _conflicts_noted: int = 0

    def add(self, outcomes: Iterable[Outcome], *, local: bool) -> None:
        """Counts the transactions of a message; `local`: they were executed here."""
        for outcome in outcomes:
            self.verdicts[outcome.verdict] += 1
            self.local += local and outcome.version > 0

    def note_conflicts(
        self, batch: LogBatch, outcomes: Sequence[Outcome], log_sequence: int, at_us: int
    ) -> None:
        """Notes who lost in a message of the log, whose outcomes are counted. Cost: O(1) if nobody
        did.
        """
        if self.verdicts[Verdict.CONFLICT] != self._conflicts_noted:
            self._conflicts_noted = self.verdicts[Verdict.CONFLICT]
            self.conflicts.note(batch, outcomes, log_sequence, at_us)

    @property
    def log_verdicts(self) -> list[int]:
        """Transactions of the log so far, by the verdict's number: the same at every member."""
        return [here + before for here, before in zip(self.verdicts, self.earlier, strict=True)]
