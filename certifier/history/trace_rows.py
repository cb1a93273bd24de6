"""A trace as a certification log: the rows that `groupcert export` writes for it.

`trace.py` certifies the trace; the rows contain its decisions and the fields of its lines. A field
that a line does not have is left out, not derived.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..core import Certifier, CertifierOptions
from ..position import position_of
from ..records import (
    ExecutedElsewhere,
    GarbageCollection,
    Outcome,
    Record,
    Transaction,
    ViewChange,
)
from .recorder import HistoryRecorder
from .schema import Row, Source
from .trace import JsonObject, Replay
from .trace_fields import names_of, number_of, text_of

OBSERVER: Final = "trace"
"""The observer if none is named: no member has this name, so all transactions are remote."""
_NUMBERS = ("domain_id", "commit_id", "commit_parent")


class TraceHistory:
    """Certifies a trace as `observer` sees it, and returns its records as rows."""

    def __init__(
        self, options: CertifierOptions, observer: str | None = None, *, keys: bool = False
    ) -> None:
        """Creates the certifier; with `keys` the rows also have the readable keys."""
        certifier = Certifier(options)
        self._recorder = HistoryRecorder(certifier, observer or OBSERVER, Source.TRACE)
        self._replay = Replay(certifier, observer, self)
        self._keys = keys
        self._rows: list[Row] = []

    @property
    def line(self) -> int:
        """Number of the line that was read last; 0 before the first one."""
        return self._replay.line

    def rows(self, lines: Iterable[str]) -> Iterator[Row]:
        """Yields the row that begins the history, then the rows of the trace's lines.

        Raises:
            InvalidTrace: a line is not of the format; the rows of those before it are yielded.
        """
        yield self._recorder.start(position_of(0, 0))
        for text in lines:
            self._replay.replay(text)
            yield from self._rows
            self._rows.clear()

    def transaction(
        self,
        transaction: Transaction,
        outcome: Outcome,
        line: JsonObject,
        texts: tuple[Sequence[str], Sequence[str]],
    ) -> None:
        """Adds the row of a decided transaction, with the optional fields of its line."""
        known: Row = {"session": text_of(line, "session", self._replay.line)}
        text_of(line, "member", self._replay.line)
        if self._keys:
            write_keys, read_keys = texts
            known["write_keys"] = list(write_keys)
            known["read_keys"] = list(read_keys) or None
        databases = names_of(line, "databases", self._replay.line)
        known["databases"] = None if databases is None else sorted(set(databases))
        for name in _NUMBERS:
            known[name] = number_of(line, name, self._replay.line)
        self._rows += self._recorder.transaction(transaction, outcome, known)

    def record(self, record: Record, line: JsonObject) -> None:
        """Adds the rows of another record."""
        match record:
            case ExecutedElsewhere():
                self._rows += self._recorder.executed_elsewhere(record)
            case GarbageCollection():
                self._rows += self._recorder.garbage_collection(record)
            case _:
                assert isinstance(record, ViewChange), record
                view_id = text_of(line, "view_id", self._replay.line)
                members = names_of(line, "members", self._replay.line) or []
                self._rows.append(self._recorder.view_change(record, view_id, members))
