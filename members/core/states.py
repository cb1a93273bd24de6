"""The states of a member; `members/core/README.md` has them with what an operator does."""

from enum import Enum


class MemberState(Enum):
    """What a member does now; numbers as on the wire."""

    OFFLINE = 1
    JOINING = 2
    RECOVERING = 3
    ONLINE = 4
    ERROR = 5
    FENCED = 6
    LEFT = 7
