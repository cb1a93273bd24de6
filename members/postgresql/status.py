"""What a companion does now, and what it has done since it connected; and how others ask it.

The rule it keeps: the numbers are the companion's own, so that asking costs the server nothing. It
answers over the socket of its backends, to the server's account and root, who prove that they know
the token of `groupcert.settings`.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...certifier.errors import NotServing
from ..services.metrics import Measurement
from .attachment import (
    check_place,
    is_attached,
    name_of,
    opened,
    unsuitable,
)
from .companion_socket import short
from .handshake import ask

TIMEOUT_SECONDS = 5.0
SQLSTATES = ("40001", "08007", "25006", "0A000", "54000")
"""The codes with which backends are refused; members/postgresql/README.md says when."""
METRIC = "groupcert_postgresql_"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionStatus:
    """A companion's status; counts are of the time since it connected to its server."""

    server: str
    member: str
    """The member whose binary log it reads; "": none answers."""
    out_of_group: str
    """Why the server takes no writes; "" if it does."""
    version: int
    """The newest version that is executed at the server, or has its turn."""
    behind_transactions: int
    """Versions that a member has committed beyond that."""
    pending_transactions: int
    """Transactions of others that wait to be executed."""
    certifying_transactions: int
    """Backends that wait for a verdict."""
    waiting_transactions: int
    """Certified ones that wait for their turn."""
    granted_transactions: int
    """Transactions that may commit and are not known to have."""
    held_snapshot_version: int
    """The oldest that the group remembers for this server's open transactions; 0: none."""
    oldest_transaction_seconds: float
    """Age of the oldest open transaction of the server."""
    waits_for: str
    """Whose transaction holds up the order; "": none."""
    waits_seconds: float
    certified_transactions: int
    """Transactions of backends."""
    refused_transactions: Mapping[str, int]
    """By SQLSTATE."""
    committed_transactions: int
    """Transactions of other servers that were executed."""
    executed_for_backends: int
    """Certified transactions whose backend died or made way."""
    cancelled_sessions: int
    """Sessions that stood in the way of others' transactions."""
    skipped_transactions: int
    """Transactions that an operator has left out, since when the server may differ from others."""
    astray_sequences: Sequence[str]
    """Sequences that were set to a number that is another server's, or to another step."""
    rows_outside: int
    """Changes of rows, since it connected, in tables that match a pattern and are not attached."""
    skipped_rows: int
    """Rows of others under names that no table has."""


@dataclass(slots=True)
class Totals:
    """The counters of a companion."""

    certified: int = 0
    committed: int = 0
    executed_for_backends: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SQLSTATES, 0))


GAUGES = {
    "version": "newest version that is executed at the server, or has its turn",
    "behind_transactions": "versions that a member has committed beyond that",
    "pending_transactions": "transactions of others that wait to be executed",
    "certifying_transactions": "backends that wait for a verdict",
    "waiting_transactions": "certified transactions that wait for their turn",
    "granted_transactions": "transactions that may commit and are not known to have",
    "held_snapshot_version": "oldest snapshot that the group remembers for open transactions",
    "oldest_transaction_seconds": "age of the oldest open transaction of the server",
    "skipped_transactions": "transactions left out, since when the server may differ from others",
    "waits_seconds": "time for which one transaction has held up the order",
}
COUNTERS = {
    "certified_transactions": "transactions of backends that were certified",
    "committed_transactions": "transactions of others that were executed",
    "executed_for_backends": "certified transactions whose backend died or made way",
    "cancelled_sessions": "sessions that stood in the way of transactions of others",
    "rows_outside": "changes of rows in tables that match a pattern and are not attached",
    "skipped_rows": "rows of others under names that no table has",
}


def measurements(status: CompanionStatus | None) -> Iterator[Measurement]:
    """Yields a companion's metrics; none while it has no server."""
    if status is None:
        return
    takes_writes = float(not status.out_of_group)
    yield Measurement(METRIC + "takes_writes", "whether the server takes writes", takes_writes)
    for name, text in GAUGES.items():
        yield Measurement(METRIC + name, text, getattr(status, name))
    name, text = "astray_sequences", "sequences with a number or a step that is not this server's"
    yield Measurement(METRIC + name, text, len(status.astray_sequences))
    for name, text in COUNTERS.items():
        yield Measurement(METRIC + name, text, getattr(status, name), is_counter=True)
    name, text = "refused_transactions", "transactions of backends that were refused"
    refused = status.refused_transactions
    yield Measurement(METRIC + name, text, refused, label="sqlstate", is_counter=True)


def ask_companion(dsn: str) -> CompanionStatus:
    """Returns the status of the companion of a server.

    Raises:
        UnsuitableTarget: Nothing is attached there, or it is a copy.
        NotServing: The server does not answer, or it has no companion; its state says why.
    """
    with opened(dsn) as connection:
        if not is_attached(connection):
            raise unsuitable(dsn, "nothing is attached", "groupcert postgresql attach before")
        check_place(connection, dsn)
        row = connection.execute(
            "SELECT socket_path, token, out_of_group FROM groupcert.settings"
        ).fetchone()
    assert row is not None, "an attached server without settings"
    path, token, reason = row
    try:
        with closing(socket.socket(socket.AF_UNIX)) as asking:
            asking.settimeout(TIMEOUT_SECONDS)
            with short(Path(path)) as address:
                asking.connect(address)
            with asking.makefile("rb") as answers:
                answer: Any = ask(asking, answers, token, {"status": True})
            return CompanionStatus(**answer)
    except (OSError, ValueError) as error:
        state = f"without a companion at {path} ({reason or error})"
        raise NotServing(member=name_of(dsn), state=state) from None
