"""What following a MySQL or MariaDB server raises on purpose, beside what `applier/errors.py` has.

    InvalidRequest
    └── SourceRefused             SOURCE_REFUSED
    Unavailable
    └── SourceLost                SOURCE_LOST

The rule is that of the whole tree: a leaf's `reason` is never reused, and its message gives the
value, the limit and the next step. No message has a password.
"""

from ...certifier.errors import InvalidRequest, Unavailable


class SourceRefused(InvalidRequest):
    """A source does not let a replica in, or is not set up for one."""

    message = "source {source} cannot be followed: {problem}; {next_step}"
    source: str
    problem: str
    next_step: str


class SourceLost(Unavailable):
    """A source does not answer, or has stopped to."""

    message = "source {source} does not answer ({cause}): start it, or name another one"
    source: str
    cause: str
