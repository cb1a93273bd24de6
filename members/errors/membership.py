"""Errors of membership, below the classes of `certifier/errors.py`.

InvalidRequest
└── AlreadyBootstrapped       ALREADY_BOOTSTRAPPED
Unavailable
├── ChangedMeanwhile          CHANGED_MEANWHILE
├── GroupMissing              GROUP_MISSING
├── NotComparable             NOT_COMPARABLE
├── NotPrimary                NOT_PRIMARY
├── OutOfGroup                OUT_OF_GROUP
├── ReleaseTooOld             RELEASE_TOO_OLD
└── RowsNotKept               ROWS_NOT_KEPT
Fenced
├── NameTaken                 NAME_TAKEN
├── RowsDiffer                ROWS_DIFFER
├── StillFenced               STILL_FENCED
└── UnreadableMessage         UNREADABLE_MESSAGE
"""

from ...certifier.errors import Fenced, InvalidRequest, Unavailable


class AlreadyBootstrapped(InvalidRequest):
    """A group was to be made that is there already."""

    message = (
        "group {group} was bootstrapped before, at {created}: nothing was changed; start its "
        "members without bootstrapping, they find it"
    )
    group: str
    created: str


class ChangedMeanwhile(Unavailable):
    """Another change of the group came first in the log, or the group did not take this one."""

    message = (
        "the group did not take the change ({change}), because another one came first: look at "
        "`groupcert status`, and ask again"
    )
    change: str


class GroupMissing(Unavailable):
    """The log servers have no log of this group."""

    group: str
    address: str
    others: str = ""
    """Groups whose logs are there; empty: none, or the servers do not tell."""

    def __str__(self) -> str:
        there = (
            f", which has logs of {self.others}: is the name right? If so," if self.others else ":"
        )
        return (
            f"there is no group {self.group} at {self.address}{there} make it, once, with "
            "`groupcert bootstrap`; if it was there before, its log is lost: do not make another, "
            "`groupcert log rebuild` makes it again from what members hold"
        )


class NameTaken(Fenced):
    """Another process has joined under this member's name."""

    message = (
        "another process serves as {member}, at {address}: a name is one member's; stop one of the "
        "two, or give it another name and an empty data folder"
    )
    member: str
    address: str


class NotComparable(Unavailable):
    """The group cannot compare its rows now."""

    message = "rows cannot be compared: {problem}"
    problem: str


class NotPrimary(Unavailable):
    """In single-primary mode only the primary takes transactions; nothing was ordered."""

    member: str
    primary: str
    address: str

    def __str__(self) -> str:
        return (
            f"{self.member} takes no transactions, the group is in single-primary mode: "
            f"send it to {self.primary or 'the next primary'} {self.address}".rstrip()
        )


class OutOfGroup(Unavailable):
    """The group goes on without this member."""

    message = "{member} is out of its group: {explanation}"
    member: str
    explanation: str


class ReleaseTooOld(Unavailable):
    """The group writes a format of the log that this release does not read."""

    message = (
        "{member} runs release {release}, which reads formats of the log to {newest}; the group "
        "writes format {written} from view {view_id} on ({others}): start the member with such a "
        "release; its data is as it was"
    )
    member: str
    release: str
    newest: int
    written: int
    view_id: int
    others: str


class RowsDiffer(Fenced):
    """Half of the members that were compared or more have other rows than this one."""

    message = (
        "rows of {member} are not those of {others}, as of version {version}, in {ranges}: "
        "`groupcert verify` names keys; where the others are right, {mending}"
    )
    member: str
    others: str
    version: int
    ranges: str
    """How many ranges of keys, and which."""
    mending: str


class RowsNotKept(Unavailable):
    """A member was asked for rows that keeps none."""

    message = "{member} keeps no rows (its setting rows is none): ask one that does, {others}"
    member: str
    others: str
    """Names and addresses of those in the view, or that there is none."""


class StillFenced(Fenced):
    """The member fenced itself in an earlier run, and its operator has not acted since."""

    message = (
        "{member} fenced itself before ({explanation}): when the cause is mended, "
        "`groupcert group rejoin --unfence`; if its state is in doubt, with --discard-state"
    )
    member: str
    explanation: str


class UnreadableMessage(Fenced):
    """A message of the log that this release cannot read, and that nobody has had skipped."""

    message = (
        "message {log_sequence} of the log cannot be read ({problem}); where some release reads "
        "it, run that; where none does, have it skipped at all members: `groupcert group skip "
        "{log_sequence}` at this one, then `groupcert group rejoin --unfence` at each that is "
        "fenced"
    )
    log_sequence: int
    problem: str
