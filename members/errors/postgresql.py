"""What ends the companion of a PostgreSQL server, in the tree of `certifier/errors.py`.

    Fenced
    └── CopyNeeded                COPY_NEEDED

The rule is that of the whole tree: a leaf's `reason` is never reused, and its message gives the
value, the limit and the next step.
"""

from groupcert.certifier.errors import Fenced


class CopyNeeded(Fenced):
    """No member's binary log reaches back to what a server has executed."""

    message = (
        "the binary log of {source} has purged {missing!q}, which {server} needs: give the "
        "companion a --member that has it, or copy a running server into an empty database: "
        "groupcert postgresql join --dsn EMPTY --from RUNNING"
    )
    source: str
    missing: str
    server: str
