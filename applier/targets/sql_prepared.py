"""Prepared XA transactions of a source at an SQL target: rows in `groupcert_prepared` by their xid,
until they are committed or rolled back there.

Rows are kept, taken and deleted by the transaction that notes the step's GTID as executed. They are
in pieces, so that no statement is larger than servers take.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..mysql_logs.prepared_payload import PreparedStep, Step, not_prepared, prepared_step
from ..queue.job import Job
from ..queue.relay_group import RelayEntry
from .sql_server import SqlServer

PIECE_BYTES = 1 << 20

Ask = Callable[[str], Sequence[tuple[Any, ...]]]
"""Runs a statement; returns its rows."""


class PreparedRows:
    """The prepared rows of one replica."""

    def __init__(self, server: SqlServer, replica: str) -> None:
        self._server = server
        self._replica = server.literal(replica)

    def steps(self, job: Job[Any], ask: Ask) -> tuple[Sequence[RelayEntry], list[str]]:
        """Returns a job's entries, those of a COMMIT with the rows that were prepared, and the
        statements that keep or delete these.

        Raises:
            TransientFailure: nothing is prepared under this xid yet, or at all.
        """
        entry = job.entries[0]
        step = prepared_step(entry.payload)
        if step is None:
            return job.entries, []
        assert len(job.entries) == 1, "a step of an XA transaction is a job of its own"
        is_mine = job.part is None or job.part.takes(step.xid.encode())
        if step.step is Step.PREPARE:
            return [entry._replace(payload=b"")], self._kept(step) if is_mine else []
        where = f"replica = {self._replica} AND xid = {self._server.literal(step.xid)}"
        pieces = ask(f"SELECT payload FROM groupcert_prepared WHERE {where} ORDER BY piece")
        if not pieces:
            raise not_prepared(step, entry.gtid)
        rows = b"".join(bytes(payload) for (payload,) in pieces)
        rows = rows if step.step is Step.COMMIT else b""
        deletes = [f"DELETE FROM groupcert_prepared WHERE {where}"]
        return [entry._replace(payload=rows)], deletes if is_mine else []

    def _kept(self, step: PreparedStep) -> list[str]:
        literal = self._server.literal
        # One piece at least: without rows a prepared transaction is to be found, too.
        starts = range(0, len(step.rows) or 1, PIECE_BYTES)
        return [
            "INSERT INTO groupcert_prepared (replica, xid, piece, payload) VALUES"
            f" ({self._replica},{literal(step.xid)},{piece},"
            f"{literal(step.rows[start : start + PIECE_BYTES])})"
            for piece, start in enumerate(starts)
        ]
