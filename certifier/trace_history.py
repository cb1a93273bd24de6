"""A trace as a certification log: the rows that `groupcert export` writes for it.

The rule it keeps: a trace is certified by `certifier.trace`, and what is in its rows was decided
there or stands in its lines. What a line does not say is left out, not derived.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from certifier.core import Certifier, CertifierOptions
from certifier.history import Row, Source
from certifier.history_recorder import HistoryRecorder
from certifier.records import (
    ExecutedElsewhere,
    GarbageCollection,
    Outcome,
    Record,
    Transaction,
    ViewChange,
    position_of,
)
from certifier.trace import JsonObject, Replay
from certifier.trace_fields import names_of, number_of, text_of

OBSERVER: Final = "trace"
"""Whose history it is if nobody is named: nobody's, so that all transactions are remote."""
_NUMBERS = ("domain_id", "commit_id", "commit_parent")


class TraceHistory:
    """Certifies a trace as `observer` sees it, and tells what became of it in rows."""

    def __init__(
        self, options: CertifierOptions, observer: str | None = None, *, keys: bool = False
    ) -> None:
        """`keys`: readable keys of rows go along."""
        certifier = Certifier(options)
        self._recorder = HistoryRecorder(certifier, observer or OBSERVER, Source.TRACE)
        self._replay = Replay(certifier, observer, self)
        self._keys = keys
        self._rows: list[Row] = []

    @property
    def line(self) -> int:
        """The number of the line that was read last; 0 before the first one."""
        return self._replay.line

    def rows(self, lines: Iterable[str]) -> Iterator[Row]:
        """Yields the rows of a trace's lines, behind the one that begins the history.

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
        """See `certifier.trace.Follower`."""
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
        """See `certifier.trace.Follower`."""
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
