"""Snapshot versions given as GTID sets, and where they stand among the versions.

The rule they keep is the conflict rule's subset test (WL#8440, certification info): a writer is
included in a snapshot if the writer's own snapshot version and its GTID are a subset of it. With
ordered commits nearly every snapshot is "everything up to a version", and comparing two integers
says the same; this module does the rest.
"""

from typing import NamedTuple

from certifier.certified_window import CertifiedWindow
from certifier.gtid_set import GtidSet

BEFORE_WINDOW = -1
"""The place of a snapshot that misses something which the window does not hold any more."""


class ForeignSnapshot(NamedTuple):
    """A GTID set that includes all versions up to `version`, not the next one, and perhaps later
    ones.
    """

    version: int
    gtid_set: GtidSet


def place(window: CertifiedWindow, missing: GtidSet, lag_max: int) -> int:
    """The newest version before all `missing` GTIDs, which are executed but not in a snapshot.

    Returns: `BEFORE_WINDOW` where it is not in the window, or more than `lag_max` versions back.
    Cost: O(versions between it and the newest one), at most `lag_max`.
    """
    if not missing:
        return window.newest_version
    return window.first_missing(missing, lag_max) - 1


def includes(window: CertifiedWindow, writer: int, snapshot: ForeignSnapshot) -> bool:
    """Whether the writer's snapshot version and its own GTID are a subset of the snapshot.

    What a writer had read was executed before the writer, so a writer up to the snapshot's place is
    included whole.
    """
    if writer <= snapshot.version:
        return True
    if window.gtid(writer) not in snapshot.gtid_set:
        return False
    read = window.snapshot_sets.get(writer)
    if read is not None:
        return read <= snapshot.gtid_set
    return window.snapshot(writer) <= snapshot.version
