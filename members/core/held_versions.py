"""Holds versions back from collection: those that open snapshots and undecided transactions read.

Certification looks for the writers of items after a transaction's snapshot. If the group collects
these before the transaction reaches its position, it is TOO_OLD, and the slower the group is, the
more of its work it refuses. So the stable version that a member reports does not pass what is held
here, up to a limit. Pure.
"""

from collections.abc import Callable, Iterable

from sortedcontainers import SortedDict

from ...certifier.gtid_set import GtidSet


class HeldVersions:
    """The versions that one run holds, and the stable version that it has reported."""

    def __init__(self, versions_max: int) -> None:
        """Holds versions at most `versions_max` behind the newest one that could be reported."""
        self.stable_version = 0
        self._versions_max = versions_max
        self._counts: SortedDict[int, int] = SortedDict()

    def hold(self, version: int) -> Callable[[], None]:
        """Holds a version until the function that it returns is called, once."""
        self._counts[version] = self._counts.get(version, 0) + 1
        return lambda: self._release(version)

    def hold_all(self, snapshots: Iterable[int | GtidSet]) -> Callable[[], None]:
        """Holds the oldest of transactions' snapshots, see `hold`. A set of GTIDs is not placed
        among the versions, which costs much: while it is held, nothing more is stable. A snapshot
        that the reported version has passed is not held: it cannot be saved.
        """
        stable = self.stable_version
        versions = (each if isinstance(each, int) else stable for each in snapshots)
        oldest = min((each for each in versions if each >= stable), default=None)
        return _nothing if oldest is None else self.hold(oldest)

    @property
    def oldest(self) -> int:
        """The oldest version that is held; 0: none is."""
        return self._counts.peekitem(0)[0] if self._counts else 0

    def advance(self, version: int) -> int:
        """Returns the stable version to report, where `version` is on disk and visible: it passes
        none that is held, unless that lies too far behind, and never goes back.
        """
        held = next(self._counts.irange(self.stable_version), version)
        allowed = min(version, max(held, version - self._versions_max))
        self.stable_version = max(self.stable_version, allowed)
        return self.stable_version

    def _release(self, version: int) -> None:
        self._counts[version] -= 1
        if not self._counts[version]:
            del self._counts[version]


def _nothing() -> None:
    """Releases nothing."""
