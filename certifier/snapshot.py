"""Snapshots given as GTID sets, and their position among the versions.

The conflict rule is a subset test (WL#8440, certification info): a writer is included in a snapshot
if the writer's own snapshot and its GTID are a subset of it. With ordered commits nearly every
snapshot is "everything up to a version", and comparing two integers answers the same; this module
does the other cases.
"""

from typing import NamedTuple

from .certified_window import CertifiedWindow
from .gtid_set import GtidSet

BEFORE_WINDOW = -1
"""The version of a snapshot that lacks a transaction which the window no longer holds."""


class ForeignSnapshot(NamedTuple):
    """A GTID set that includes all versions up to `version`, not the next one, and perhaps later
    ones.
    """

    version: int
    gtid_set: GtidSet


def place(window: CertifiedWindow, missing: GtidSet, lag_max: int) -> int:
    """Returns the newest version before all `missing` GTIDs, which are executed but not in a
    snapshot.

    Returns: `BEFORE_WINDOW` where it is not in the window, or more than `lag_max` versions back.
    Cost: O(versions between it and the newest one), at most `lag_max`.
    """
    if not missing:
        return window.newest_version
    return window.first_missing(missing, lag_max) - 1


def includes(window: CertifiedWindow, writer: int, snapshot: ForeignSnapshot) -> bool:
    """Returns whether the writer's snapshot and its own GTID are a subset of the snapshot.

    A writer's reads were executed before the writer, so a writer up to the snapshot's version is
    included whole.
    """
    if writer <= snapshot.version:
        return True
    if window.gtid(writer) not in snapshot.gtid_set:
        return False
    # The subset test of WL#8440 for a writer beyond the version: its own snapshot has to be
    # included, too. The set says so exactly; without one the version does.
    read = window.snapshot_sets.get(writer)
    if read is not None:
        return read <= snapshot.gtid_set
    return window.snapshot(writer) <= snapshot.version
