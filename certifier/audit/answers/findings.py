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
    REPORT_WRONG = "REPORT_WRONG"
    DIGEST_WRONG = "DIGEST_WRONG"
    HISTORY_CUT = "HISTORY_CUT"
    SETTINGS_WRONG = "SETTINGS_WRONG"
    ORIGIN_WRONG = "ORIGIN_WRONG"
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
    """The severity of a code, its meaning, and what to do about it."""

    severity: Severity
    text: str
    advice: str


_E, _W = Severity.ERROR, Severity.WARNING
_REJOIN = "have it join again: groupcert group rejoin --discard-state."
MEANINGS: dict[Code, Meaning] = {
    Code.CONFLICT_MISSED: Meaning(
        _E,
        "certified, though its snapshot lacks a writer of one of its items",
        "Compare the items of the witness in the members' databases: the later change went "
        "over the earlier one, which its client had not seen. Compare the releases of the "
        "members.",
    ),
    Code.CONFLICT_FALSE: Meaning(
        _E,
        "aborted as a conflict, though its snapshot had every writer of its items",
        "No data are lost: its client may try again. Compare the releases and settings of the"
        " members.",
    ),
    Code.WINNER_WRONG: Meaning(
        _E,
        "a conflict names a winner that was not the item's last writer",
        "No data are lost: the verdict stands. Report it with both rows of the log.",
    ),
    Code.TOO_OLD_MISSED: Meaning(
        _E,
        "decided, though its snapshot was older than what was collected",
        "Look at what it wrote for lost updates: which conflicts it had is no longer known. "
        "Compare the releases of the members.",
    ),
    Code.TOO_OLD_FALSE: Meaning(
        _E,
        "aborted as too old, though nothing that its snapshot lacks was stable",
        "No data are lost: its client may try again. Look at the collections before it.",
    ),
    Code.REFUSAL_MISSED: Meaning(
        _E,
        "decided, though its snapshot names a version that there was not yet",
        "Look at the session that sent it: it named a state that there was not yet. Check "
        "what it wrote.",
    ),
    Code.REFUSAL_FALSE: Meaning(
        _E,
        "refused without a reason that the history shows",
        "No data are lost: its client may try again. Compare the releases of the members.",
    ),
    Code.GTID_DUPLICATE: Meaning(
        _E,
        "two certified transactions have the same GTID",
        "Stop replicas of the group before they skip the second one; find who sends GTIDs of "
        "its own.",
    ),
    Code.GTID_GAP: Meaning(
        _E,
        "a GTID number was skipped that the rule would have given",
        "No data are lost. Have no replica wait for that number; compare "
        "gtid_assignment_block_size at the members.",
    ),
    Code.GTID_ORDER: Meaning(
        _E,
        "GTID numbers of a member go back within a block",
        "No data are lost. Start no replica from a GTID set of that time; compare "
        "gtid_assignment_block_size at the members.",
    ),
    Code.STAMP_TOO_LOW: Meaning(
        _E,
        "last_committed is below what it depends on: an applier may run both at once",
        "Let what reads this member's stamps apply with one worker; compare the items of the "
        "witness there with those of a member.",
    ),
    Code.STAMP_TOO_HIGH: Meaning(
        _W,
        "last_committed is above what it depends on: an applier waits for nothing",
        "Nothing has to be repaired. If appliers lag, look at what closes the window before it.",
    ),
    Code.SEQUENCE_WRONG: Meaning(
        _E,
        "sequence_number does not follow from the one before it",
        "Let what reads this member's stamps apply with one worker, until a view change "
        "begins its clock again.",
    ),
    Code.VERSION_WRONG: Meaning(
        _E,
        "versions do not count the certified transactions",
        "Look for a RECORD_MISSING before it. If this member alone has it, " + _REJOIN,
    ),
    Code.VIEW_CHANGE_WRONG: Meaning(
        _E,
        "a view change has other stamps or another window than the rule gives",
        "Compare the row with the other members' logs. If this member alone has it, " + _REJOIN,
    ),
    Code.PURGED_TOO_EARLY: Meaning(
        _E,
        "items were purged whose writer was not executed by all members",
        "Look at what was certified next for conflicts that were missed; find the member that"
        " reported more than it had executed.",
    ),
    Code.COLLECTION_WRONG: Meaning(
        _E,
        "a collection purged another number of items than were there to purge",
        "Compare the row with the other members' logs. If this member alone has it, " + _REJOIN,
    ),
    Code.WINDOW_WRONG: Meaning(
        _E,
        "a collection left another lower edge of the window than the rule gives",
        "Let what reads this member's stamps apply with one worker until the next collection;"
        " look for STAMP_TOO_LOW behind it.",
    ),
    Code.STABLE_SET_WRONG: Meaning(
        _E,
        "a stable set goes back, or names what was not certified or not executed by all members",
        "Find the member that reported what it had not executed, in the reports before "
        "it; compare its data with another member's.",
    ),
    Code.MEMBERS_DISAGREE: Meaning(
        _E,
        "members have recorded different things at the same place",
        "Audit an export of the log server with the copies: it says who is right. "
        "Keep the log of who is not, compare its data, and " + _REJOIN,
    ),
    Code.RECORD_MISSING: Meaning(
        _E,
        "a record is missing from a history",
        "Bring the file of that place back from a copy. If there was none to lose, find who "
        "could write to the folder.",
    ),
    Code.RECORD_EDITED: Meaning(
        _E,
        "a record does not fit the chain: it is not what was written",
        "Keep the files as they are, and find who could write to the folder. An export of the"
        " log server says what was decided.",
    ),
    Code.RECORD_REORDERED: Meaning(
        _E,
        "records are not in the order in which they were written",
        "Keep the files as they are, and find who could write to the folder. An export of the"
        " log server says what was decided.",
    ),
    Code.REPORT_WRONG: Meaning(
        _E,
        "the chain is not what its member told the group at that place",
        "Keep the files as they are: that copy was made anew, or its member went wrong. An "
        "export of the log server says which.",
    ),
    Code.DIGEST_WRONG: Meaning(
        _E,
        "the decisions are not those that the group's digests cover",
        "Audit an export of the log server with the copies: it says whether all copies were "
        "changed, or members decided wrong.",
    ),
    Code.HISTORY_CUT: Meaning(
        _W,
        "a history ends before rows that its member told the group it had written",
        "Copy that member's log again, after the others' logs. If it still ends there, its "
        "end was cut off: find who could write to the folder.",
    ),
    Code.SETTINGS_WRONG: Meaning(
        _E,
        "a history names another source, group or settings than its rows and its group have",
        "Keep the files as they are, and find who could write to the folder. The audit goes by "
        "what the rows show; an export of the log server says what was decided.",
    ),
    Code.ORIGIN_WRONG: Meaning(
        _E,
        "a history calls a transaction its member's own that another member sent",
        "Look whether the logs of two members were exchanged, or the origin was changed. An "
        "export of the log server says who sent it.",
    ),
    Code.LOST_UPDATE: Meaning(
        _E,
        "two transactions wrote the same item and neither saw the other",
        "Look at the item of the witness: the earlier change is lost. Make it again if it "
        "still counts.",
    ),
    Code.WRITE_CYCLE: Meaning(
        _E,
        "G0: writes of two transactions became visible in different orders",
        "Compare the items of the witness at all members; have who differs from the others "
        "join again: groupcert group rejoin --discard-state.",
    ),
    Code.INFORMATION_CYCLE: Meaning(
        _E,
        "G1: a transaction read what was decided only after it",
        "Check what the witness's transactions wrote: one of them relied on what was decided "
        "after it. Compare the clients' snapshots.",
    ),
    Code.READ_SKEW: Meaning(
        _E,
        "G-single: a snapshot has what followed from a change, but not the change",
        "Check what the later transaction of the witness wrote: it relied on half of a "
        "change. Compare the clients' snapshots.",
    ),
    Code.WRITE_SKEW: Meaning(
        _E,
        "two transactions each wrote what the other had read, unseen by it",
        "Check by hand what has to hold of the items of the witness together, such as a sum. "
        "Look whether its members agree on read sets.",
    ),
    Code.SERIALIZATION_CYCLE: Meaning(
        _E,
        "no serial order explains what these transactions read",
        "Check by hand what has to hold of the items of the witness together, such as a sum. "
        "Look whether its members agree on read sets.",
    ),
    Code.APPLIED_TOGETHER: Meaning(
        _E,
        "the applier ran two transactions at once that share an item",
        "Compare the items of the witness with another member's. Set workers to 0 "
        "there until the cause is found.",
    ),
    Code.APPLIED_OUT_OF_ORDER: Meaning(
        _E,
        "a transaction became visible before one that stands before it",
        "Set preserve_commit_order where that is off: readers saw states that never were. The"
        " data are right in the end.",
    ),
    Code.APPLIED_TOO_SOON: Meaning(
        _E,
        "it started before the one that its last_committed names was visible",
        "Compare the items of the witness with another member's. Set workers to 0 "
        "there until the cause is found.",
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
        StructField("cause", StringType()),
        StructField("cause_place", LongType()),
    ]
)
"""A finding as a row; `place` as in the log (`certifier.history.schema.place_of`). `cause`: the
code of the finding of the same history that it follows from, if it follows from one."""


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
