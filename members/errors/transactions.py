"""What a client is told of a transaction that did not commit, or may not have.

    GroupcertError
    ├── MemberFailed              MEMBER_FAILED
    └── TransactionFailed
        ├── CertificationConflict     CERTIFICATION_CONFLICT
        ├── OutcomeUnknown            OUTCOME_UNKNOWN
        ├── TransactionRefused        TRANSACTION_REFUSED
        └── TransactionTooOld         TRANSACTION_TOO_OLD

The rule it keeps: each class says what the caller may do next. After a conflict or a snapshot that
is too old, run the transaction again; after a refusal, change it; after an unknown outcome, ask for
the outcome by the transaction's id before doing anything that must happen once. Errors that are not
about a transaction are those of `certifier.errors`.
"""

from ...certifier.errors import GroupcertError


class TransactionFailed(GroupcertError):
    """A transaction did not commit, or nobody can say whether it did."""


class CertificationConflict(TransactionFailed):
    """Somebody else wrote one of the rows first; nothing of this transaction was kept.

    `item` is the row's write-set item, `key` the row in words and `key_bytes` exactly as it was
    written. Both are empty where the member does not know the row; `key` is cut where it is long,
    `key_bytes` is empty then. Versions count transactions, log sequences are positions in the total
    order.
    """

    item: int
    key: str
    key_bytes: bytes = b""
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


class TransactionTooOld(TransactionFailed):
    """The snapshot is older than what certification still knows; nothing was kept."""

    message = "transaction is too old ({explanation}): run it again on a new snapshot"
    explanation: str


class TransactionRefused(TransactionFailed):
    """The group refuses the transaction as it stands; nothing was kept."""

    message = "transaction was refused: {explanation}"
    explanation: str


class OutcomeUnknown(TransactionFailed):
    """Nobody can say whether the transaction committed: no member did in time, and it may still do
    so; or it may be a repetition of one whose outcome is forgotten.
    """

    transaction_id: bytes
    cause: str

    def __str__(self) -> str:
        return (
            f"outcome of transaction {self.transaction_id.hex()} is unknown ({self.cause}): "
            "ask for it by this id, or look for what it wrote, before running the transaction again"
        )


class MemberFailed(GroupcertError):
    """A member answered with an error that no contract of the group describes."""

    message = "member at {address} failed with {code}: {explanation}"
    address: str
    code: str
    explanation: str
