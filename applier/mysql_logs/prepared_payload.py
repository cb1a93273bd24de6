"""Payloads of XA transactions: rows that a source has prepared, and what settles them.

A server logs such a transaction twice. At XA PREPARE it logs the rows, under a GTID; nobody sees
them there, and their locks stay until XA COMMIT or XA ROLLBACK, which have a GTID of their own and
no rows, and may come from another session, or after a restart. So a target keeps prepared rows
under their xid, and makes the changes when they are committed. One that commits in one phase is
logged as any other transaction.

Source: MySQL Reference Manual, 15.3.8.1 "XA Transaction SQL Statements"; MariaDB Knowledge Base,
"XA Transactions", "Binary Logging of XA Transactions" (10.5).
"""

import re
from enum import IntEnum
from typing import NamedTuple

from ..errors import TransientFailure
from .events import EventType

_MARK = bytes([EventType.XA_PREPARE])
_LENGTH_BYTES = 2
_STEP = re.compile(r"\s*XA\s+(PREPARE|COMMIT|ROLLBACK)\s+(\S.*?)\s*;?\s*", re.I | re.S)


class Step(IntEnum):
    """What a transaction of the log does with an XA transaction."""

    PREPARE = 1
    COMMIT = 2
    ROLLBACK = 3


class PreparedStep(NamedTuple):
    """A step of the XA transaction `xid`, spelled as in a log; `rows`: at its preparation."""

    step: Step
    xid: str
    rows: bytes

    @classmethod
    def of(cls, statement: str, rows: bytes) -> "PreparedStep | None":
        """Returns the step that a statement is; None if it is none.

        >>> PreparedStep.of("XA COMMIT X'61',X'',1", b"").xid
        "x'61',x'',1"
        """
        found = _STEP.fullmatch(statement)
        if found is None:
            return None
        return cls(Step[found[1].upper()], "".join(found[2].lower().split()), rows)

    def encode(self) -> bytes:
        """Returns the step as a payload."""
        xid = self.xid.encode()
        head = _MARK + bytes([self.step]) + len(xid).to_bytes(_LENGTH_BYTES, "little")
        return head + xid + self.rows

    def __str__(self) -> str:
        return f"XA {self.step.name} {self.xid}"


def is_prepared_step(payload: bytes) -> bool:
    """Returns whether a payload is a step of an XA transaction, and so a job of its own."""
    return payload.startswith(_MARK)


def prepared_step(payload: bytes) -> PreparedStep | None:
    """Returns the step that a payload is; None if it is rows or other statements."""
    if not is_prepared_step(payload):
        return None
    start = len(_MARK) + 1 + _LENGTH_BYTES
    end = start + int.from_bytes(payload[start - _LENGTH_BYTES : start], "little")
    return PreparedStep(Step(payload[len(_MARK)]), payload[start:end].decode(), payload[end:])


def not_prepared(step: PreparedStep, gtid: object) -> TransientFailure:
    """Returns the failure of a COMMIT or ROLLBACK whose rows a target does not have, or not yet:
    no verdict before the job's turn.
    """
    text = (
        f"{step} is {gtid}, and the rows of its XA PREPARE are not here: they were prepared before "
        "the first copy, or skipped; copy the tables again, or make its changes by hand and go on "
        f"with --skip-gtids {gtid}"
    )
    return TransientFailure(kind="no_row", text=text)
