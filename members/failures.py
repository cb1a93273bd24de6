"""What a client is told of a transaction that did not commit, or may not have.

The rule it keeps: each class says what the caller may do next. After a conflict or a snapshot that
is too old, run the transaction again; after a refusal, change it; after an unknown outcome, ask for
the outcome by the transaction's id before doing anything that must happen once. Errors that are not
about a transaction are those of `certifier.errors`.
"""

from dataclasses import dataclass


class TransactionFailed(Exception):
    """A transaction did not commit, or nobody can say whether it did."""


@dataclass(eq=False, kw_only=True)
class CertificationConflict(TransactionFailed):
    """Somebody else wrote one of the rows first; nothing of this transaction was kept.

    `item` is the row's write-set item and `key` the row in words, empty where the member does not
    know it. Versions count transactions, log sequences are places in the total order.
    """

    item: int
    key: str
    winner_gtid: str
    winner_member: str
    winner_version: int
    winner_log_sequence: int
    snapshot_version: int
    log_sequence: int

    def __str__(self) -> str:
        row = repr(self.key) if self.key else f"item {self.item:016x}"
        return (
            f"conflict on {row}: {self.winner_gtid} of member {self.winner_member} committed "
            f"first, as version {self.winner_version} at log sequence {self.winner_log_sequence}; "
            f"this transaction read version {self.snapshot_version} and came at log sequence "
            f"{self.log_sequence}: run it again"
        )


@dataclass(eq=False, kw_only=True)
class TransactionTooOld(TransactionFailed):
    """The snapshot is older than what certification still knows; nothing was kept."""

    explanation: str

    def __str__(self) -> str:
        return f"transaction is too old ({self.explanation}): run it again on a new snapshot"


@dataclass(eq=False, kw_only=True)
class TransactionRefused(TransactionFailed):
    """The group refuses the transaction as it stands; nothing was kept."""

    explanation: str

    def __str__(self) -> str:
        return f"transaction was refused: {self.explanation}"


@dataclass(eq=False, kw_only=True)
class OutcomeUnknown(TransactionFailed):
    """No member could say in time whether the transaction committed; it may still do so."""

    transaction_id: bytes
    cause: str

    def __str__(self) -> str:
        return (
            f"outcome of transaction {self.transaction_id.hex()} is unknown ({self.cause}): "
            "ask for it by this id before running the transaction again"
        )


@dataclass(eq=False, kw_only=True)
class MemberFailed(Exception):
    """A member answered with an error that no contract of the group describes."""

    address: str
    code: str
    explanation: str

    def __str__(self) -> str:
        return f"member at {self.address} failed with {self.code}: {self.explanation}"
