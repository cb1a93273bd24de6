"""Errors of a log that is rebuilt, below the classes of `certifier/errors.py`.

InvalidRequest
├── DamagedHistory            DAMAGED_HISTORY
├── FolderInUse               FOLDER_IN_USE
├── LogIsWhole                LOG_IS_WHOLE
├── MembersDiffer             MEMBERS_DIFFER
└── MembersMissing            MEMBERS_MISSING

They are told to an operator, and cross no wire.
"""

from ...certifier.errors import InvalidRequest


class DamagedHistory(InvalidRequest):
    """A certification log is not what its member has written."""

    message = (
        "certification log {path}: row {number} cannot be read, or does not fit the chain before "
        "it; it proves nothing: leave it out"
    )
    path: str
    number: int


class FolderInUse(InvalidRequest):
    """A member runs with a data folder that is to be read."""

    message = (
        "data folder {folder} is in use by a member that runs: stop all members first, so that "
        "each has stored all that it knows"
    )
    folder: str


class LogIsWhole(InvalidRequest):
    """The log has all that the members hold."""

    message = (
        "the log of group {group} at {address}, {log}, reaches message {last_sequence}, and the "
        "members hold it up to {log_sequence}: nothing is to be rebuilt; start the members"
    )
    group: str
    address: str
    log: str
    last_sequence: int
    log_sequence: int


class MembersDiffer(InvalidRequest):
    """Data folders do not belong together."""

    message = (
        "{first} is of {first_has}, {second} is of {second_has}: give the data folders of one "
        "group, which have read one log; leave out the others, with --without their names"
    )
    first: str
    first_has: str
    second: str
    second_has: str


class MembersMissing(InvalidRequest):
    """Members of the last view were not given."""

    message = (
        "{missing} of the last view: their data folders were not given, and they may hold more; "
        "give them, or `{without}`, by which all that only they hold is lost"
    )
    missing: str
    without: str
