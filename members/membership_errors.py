"""Errors of membership, below the classes of `certifier/errors.py`.

InvalidRequest
└── AlreadyBootstrapped       ALREADY_BOOTSTRAPPED
Unavailable
├── ChangedMeanwhile          CHANGED_MEANWHILE
├── GroupMissing              GROUP_MISSING
├── NotPrimary                NOT_PRIMARY
└── OutOfGroup                OUT_OF_GROUP
Fenced
├── NameTaken                 NAME_TAKEN
├── StillFenced               STILL_FENCED
└── UnreadableMessage         UNREADABLE_MESSAGE
"""

from dataclasses import dataclass
from typing import ClassVar

from certifier.errors import Fenced, InvalidRequest, Unavailable


@dataclass(eq=False, kw_only=True)
class AlreadyBootstrapped(InvalidRequest):
    """A group was to be made that is there already."""

    reason: ClassVar[str] = "ALREADY_BOOTSTRAPPED"
    group: str
    created: str

    def __str__(self) -> str:
        return (
            f"group {self.group} was bootstrapped before, at {self.created}: nothing was changed; "
            "start its members without bootstrapping, they find it"
        )


@dataclass(eq=False, kw_only=True)
class ChangedMeanwhile(Unavailable):
    """Another change of the group came first in the log, or the group did not take this one."""

    reason: ClassVar[str] = "CHANGED_MEANWHILE"
    change: str

    def __str__(self) -> str:
        return (
            f"the group did not take the change ({self.change}), because another one came first: "
            "look at `groupcert status`, and ask again"
        )


@dataclass(eq=False, kw_only=True)
class GroupMissing(Unavailable):
    """The log servers have no log of this group."""

    reason: ClassVar[str] = "GROUP_MISSING"
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
            "`groupcert bootstrap`; if it was there before, its log is lost: do not make another"
        )


@dataclass(eq=False, kw_only=True)
class NameTaken(Fenced):
    """Another process has joined under this member's name."""

    reason: ClassVar[str] = "NAME_TAKEN"
    member: str
    address: str

    def __str__(self) -> str:
        return (
            f"another process serves as {self.member}, at {self.address}: a name is one member's; "
            "stop one of the two, or give it another name and an empty data folder"
        )


@dataclass(eq=False, kw_only=True)
class NotPrimary(Unavailable):
    """In single-primary mode only the primary takes transactions; nothing was ordered."""

    reason: ClassVar[str] = "NOT_PRIMARY"
    member: str
    primary: str
    address: str

    def __str__(self) -> str:
        return (
            f"{self.member} takes no transactions, the group is in single-primary mode: "
            f"send it to {self.primary or 'the next primary'} {self.address}".rstrip()
        )


@dataclass(eq=False, kw_only=True)
class OutOfGroup(Unavailable):
    """The group goes on without this member."""

    reason: ClassVar[str] = "OUT_OF_GROUP"
    member: str
    explanation: str

    def __str__(self) -> str:
        return f"{self.member} is out of its group: {self.explanation}"


@dataclass(eq=False, kw_only=True)
class StillFenced(Fenced):
    """The member fenced itself in an earlier run, and its operator has not acted since."""

    reason: ClassVar[str] = "STILL_FENCED"
    member: str
    explanation: str

    def __str__(self) -> str:
        return (
            f"{self.member} fenced itself before ({self.explanation}): when the cause is mended, "
            "`groupcert group rejoin --unfence`; if its state is in doubt, with --discard-state"
        )


@dataclass(eq=False, kw_only=True)
class UnreadableMessage(Fenced):
    """A message of the log that this release cannot read, and that nobody has had skipped."""

    reason: ClassVar[str] = "UNREADABLE_MESSAGE"
    log_sequence: int
    problem: str

    def __str__(self) -> str:
        return (
            f"message {self.log_sequence} of the log cannot be read ({self.problem}); where some "
            "release reads it, run that; where none does, have it skipped at all members: "
            f"`groupcert group skip {self.log_sequence}` at this one, then "
            "`groupcert group rejoin --unfence` at each that is fenced"
        )
