"""Refusals: what PostgreSQL tells the client of a transaction that the group does not let commit.

SQLSTATE 40001 is what frameworks retry; 08007 is "nobody knows", 25006 "this server takes no writes
now", 53100 a full disk, 54000 a limit.
"""

from ...certifier.errors import (
    GroupcertError,
    InvalidRequest,
    LogFull,
    TransactionTooLarge,
    WriteSetTooLarge,
)
from ...certifier.records import Outcome, Verdict
from ..errors.transactions import OutcomeUnknown
from .backends import TOO_LARGE, Refusal
from .commit_order import Entry

SQLSTATES = ("40001", "08007", "25006", "0A000", "53100", "54000")
"""The codes with which backends are refused; README.md says when."""
RETRY = "Run the transaction again: it will see what the other one committed."
_LOOK = "Look for its rows before you run it again: they appear here if the group has certified it."


def refusal_of(outcome: Outcome, row: str) -> Refusal:
    """Builds the PostgreSQL error (SQLSTATE, message, detail, hint) for a transaction that the
    group rejected; `row` names the row over which it lost.
    """
    if (conflict := outcome.conflict) is not None:
        return Refusal(
            "40001",
            "could not serialize access: another server of the group committed first",
            f"{row} was written by {conflict.winner_gtid} at member {conflict.winner_origin},"
            f" version {conflict.winner_version}; this transaction read version"
            f" {conflict.snapshot_version}.",
            RETRY,
        )
    if outcome.verdict is Verdict.TOO_OLD:
        return Refusal(
            "40001",
            "could not serialize access: the snapshot is older than the group remembers",
            outcome.reason,
            RETRY,
        )
    return Refusal("0A000", "the group refuses the transaction", outcome.reason, "Change it.")


def refusal_of_error(error: GroupcertError) -> Refusal:
    """Builds the PostgreSQL error for a transaction whose certification failed with an error."""
    if isinstance(error, OutcomeUnknown):
        message = "it is not known whether the group has certified the transaction"
        return Refusal("08007", message, str(error), _LOOK)
    if isinstance(error, TransactionTooLarge | WriteSetTooLarge):
        return Refusal("54000", TOO_LARGE, str(error), "Divide it.")
    if isinstance(error, InvalidRequest):
        return Refusal("0A000", "the group refuses the transaction", str(error), "Change it.")
    if isinstance(error, LogFull):
        return Refusal("53100", "the group takes no transactions", str(error), "Try again later.")
    return out_of_group(str(error))


def truncated_too_late(table: str, version: int) -> Refusal:
    """Builds the PostgreSQL error for a TRUNCATE whose snapshot may lack rows of its table."""
    return Refusal(
        "40001",
        "could not serialize access: another transaction changed a table that is truncated",
        f"Version {version} may have rows of {table} that this transaction does not see.",
        RETRY,
    )


def out_of_group(reason: str) -> Refusal:
    """Builds the PostgreSQL error for a transaction while the server is out of its group."""
    return Refusal(
        "25006",
        f"this server is read-only: {reason}",
        "It is out of its group, and takes part again by itself.",
        "Try again later, or at another server.",
    )


def given_up(entry: Entry) -> Refusal:
    """Builds the PostgreSQL error for a certified transaction whose session had to make way."""
    return Refusal(
        "08007",
        "the group has certified the transaction, which will be executed for this session",
        f"{entry.gtid} is version {entry.version}; the session held a lock that an earlier"
        " transaction of another server needs.",
        "Do not run it again: its rows appear here in a moment.",
    )
