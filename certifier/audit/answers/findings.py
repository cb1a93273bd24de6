"""The findings of an audit: stable codes, their severity, and their meaning.

A code is never used for something else, and never renamed. A finding names its place, what was
expected there and what was found, and a witness that a person can check.
"""

from enum import StrEnum
from typing import NamedTuple

from pyspark.sql.types import LongType, StringType, StructField, StructType

ROWS_MAX = 10_000
"""Findings of a code that are kept; all are counted."""


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """The history is wrong: data may be, or the proof of it is broken."""
    WARNING = "warning"
    """The data is right; something was slower than it had to be, or is odd."""


class Code(StrEnum):
    """The code of a finding."""

    CONFLICT_MISSED = "CONFLICT_MISSED"
    CONFLICT_FALSE = "CONFLICT_FALSE"
    WINNER_WRONG = "WINNER_WRONG"
    TOO_OLD_MISSED = "TOO_OLD_MISSED"
    TOO_OLD_FALSE = "TOO_OLD_FALSE"
    REFUSAL_MISSED = "REFUSAL_MISSED"
    REFUSAL_FALSE = "REFUSAL_FALSE"
    GTID_DUPLICATE = "GTID_DUPLICATE"
    GTID_GAP = "GTID_GAP"
    GTID_ORDER = "GTID_ORDER"
    STAMP_TOO_LOW = "STAMP_TOO_LOW"
    STAMP_TOO_HIGH = "STAMP_TOO_HIGH"
    SEQUENCE_WRONG = "SEQUENCE_WRONG"
    VERSION_WRONG = "VERSION_WRONG"
    VIEW_CHANGE_WRONG = "VIEW_CHANGE_WRONG"
    PURGED_TOO_EARLY = "PURGED_TOO_EARLY"
    COLLECTION_WRONG = "COLLECTION_WRONG"
    WINDOW_WRONG = "WINDOW_WRONG"
    STABLE_SET_WRONG = "STABLE_SET_WRONG"
    MEMBERS_DISAGREE = "MEMBERS_DISAGREE"
    RECORD_MISSING = "RECORD_MISSING"
    RECORD_EDITED = "RECORD_EDITED"
    RECORD_REORDERED = "RECORD_REORDERED"
    CHECKPOINT_WRONG = "CHECKPOINT_WRONG"
    DIGEST_WRONG = "DIGEST_WRONG"
    LOST_UPDATE = "LOST_UPDATE"
    WRITE_CYCLE = "WRITE_CYCLE"
    INFORMATION_CYCLE = "INFORMATION_CYCLE"
    READ_SKEW = "READ_SKEW"
    WRITE_SKEW = "WRITE_SKEW"
    SERIALIZATION_CYCLE = "SERIALIZATION_CYCLE"
    APPLIED_TOGETHER = "APPLIED_TOGETHER"
    APPLIED_OUT_OF_ORDER = "APPLIED_OUT_OF_ORDER"
    APPLIED_TOO_SOON = "APPLIED_TOO_SOON"


class Meaning(NamedTuple):
    """The severity of a code and its meaning for people."""

    severity: Severity
    text: str


_E, _W = Severity.ERROR, Severity.WARNING
MEANINGS: dict[Code, Meaning] = {
    Code.CONFLICT_MISSED: Meaning(
        _E, "certified, though its snapshot lacks a writer of one of its items"
    ),
    Code.CONFLICT_FALSE: Meaning(
        _E, "aborted as a conflict, though its snapshot had every writer of its items"
    ),
    Code.WINNER_WRONG: Meaning(_E, "a conflict names a winner that was not the item's last writer"),
    Code.TOO_OLD_MISSED: Meaning(
        _E, "decided, though its snapshot was older than what was collected"
    ),
    Code.TOO_OLD_FALSE: Meaning(
        _E, "aborted as too old, though nothing that its snapshot lacks was stable"
    ),
    Code.REFUSAL_MISSED: Meaning(
        _E, "decided, though its snapshot names a version that there was not yet"
    ),
    Code.REFUSAL_FALSE: Meaning(_E, "refused without a reason that the history shows"),
    Code.GTID_DUPLICATE: Meaning(_E, "two certified transactions have the same GTID"),
    Code.GTID_GAP: Meaning(_E, "a GTID number was skipped that the rule would have given"),
    Code.GTID_ORDER: Meaning(_E, "GTID numbers of a member go back within a block"),
    Code.STAMP_TOO_LOW: Meaning(
        _E, "last_committed is below what it depends on: an applier may run both at once"
    ),
    Code.STAMP_TOO_HIGH: Meaning(
        _W, "last_committed is above what it depends on: an applier waits for nothing"
    ),
    Code.SEQUENCE_WRONG: Meaning(_E, "sequence_number does not follow from the one before it"),
    Code.VERSION_WRONG: Meaning(_E, "versions do not count the certified transactions"),
    Code.VIEW_CHANGE_WRONG: Meaning(
        _E, "a view change has other stamps or another window than the rule gives"
    ),
    Code.PURGED_TOO_EARLY: Meaning(
        _E, "items were purged whose writer was not executed by all members"
    ),
    Code.COLLECTION_WRONG: Meaning(
        _E, "a collection purged another number of items than were there to purge"
    ),
    Code.WINDOW_WRONG: Meaning(
        _E, "a collection left another lower edge of the window than the rule gives"
    ),
    Code.STABLE_SET_WRONG: Meaning(
        _E, "a stable set goes back, or names what was not certified or not executed by all members"
    ),
    Code.MEMBERS_DISAGREE: Meaning(_E, "members have recorded different things at the same place"),
    Code.RECORD_MISSING: Meaning(_E, "a record is missing from a history"),
    Code.RECORD_EDITED: Meaning(_E, "a record does not fit the chain: it is not what was written"),
    Code.RECORD_REORDERED: Meaning(_E, "records are not in the order in which they were written"),
    Code.CHECKPOINT_WRONG: Meaning(
        _E, "the chain is not what its member told the group at that place"
    ),
    Code.DIGEST_WRONG: Meaning(_E, "the decisions are not those that the group's digests cover"),
    Code.LOST_UPDATE: Meaning(_E, "two transactions wrote the same item and neither saw the other"),
    Code.WRITE_CYCLE: Meaning(
        _E, "G0: writes of two transactions became visible in different orders"
    ),
    Code.INFORMATION_CYCLE: Meaning(_E, "G1: a transaction read what was decided only after it"),
    Code.READ_SKEW: Meaning(
        _E, "G-single: a snapshot has what followed from a change, but not the change"
    ),
    Code.WRITE_SKEW: Meaning(
        _E, "two transactions each wrote what the other had read, unseen by it"
    ),
    Code.SERIALIZATION_CYCLE: Meaning(_E, "no serial order explains what these transactions read"),
    Code.APPLIED_TOGETHER: Meaning(
        _E, "the applier ran two transactions at once that share an item"
    ),
    Code.APPLIED_OUT_OF_ORDER: Meaning(
        _E, "a transaction became visible before one that stands before it"
    ),
    Code.APPLIED_TOO_SOON: Meaning(
        _E, "it started before the one that its last_committed names was visible"
    ),
}

FINDING = StructType(
    [
        StructField("code", StringType(), nullable=False),
        StructField("severity", StringType(), nullable=False),
        StructField("observer", StringType()),
        StructField("history", StringType()),
        StructField("place", LongType()),
        StructField("expected", StringType()),
        StructField("found", StringType()),
        StructField("witness", StringType()),
    ]
)
"""A finding as a row; `place` as in the log (`certifier.history.schema.place_of`)."""


class Finding(NamedTuple):
    """One finding, as the driver has it."""

    code: Code
    observer: str
    history: str
    place: int
    expected: str
    found: str
    witness: str

    @property
    def severity(self) -> Severity:
        """Severity of the finding's code."""
        return MEANINGS[self.code].severity
