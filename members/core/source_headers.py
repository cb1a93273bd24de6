"""Builds the header that a transaction will have in the binary log."""

from groupcert.applier.source.header import SourceHeader
from groupcert.members.core.log_records import LoggedTransaction


def header_of(logged: LoggedTransaction, applied_version: int, locked_version: int) -> SourceHeader:
    """Returns the header that a transaction will have in the binary log, when it is about to
    prepare.

    Args:
        applied_version: Version that is visible here now.
        locked_version: Version that was visible when its commit was asked for here; 0: elsewhere.
    """
    snapshot = logged.snapshot
    return SourceHeader(
        applied_version,
        0,
        logged.domain_id,
        None,
        None,
        logged.write_set,
        0,
        0,
        0,
        max(locked_version, snapshot) if isinstance(snapshot, int) else None,
    )
