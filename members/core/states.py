"""The states of a member (design, section 5)."""

from enum import Enum


class MemberState(Enum):
    """What a member does now (design, section 5); numbers as on the wire."""

    OFFLINE = 1
    JOINING = 2
    RECOVERING = 3
    ONLINE = 4
    ERROR = 5
    FENCED = 6
    LEFT = 7
