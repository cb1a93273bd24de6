"""Where a replica stops by itself: after or before GTIDs, at a position, at a view change, or when
it has no gaps.

The rule it keeps: entries are looked at in the source's order, before they are handed on; once a
condition is met, nothing more is executed.

Source: WL#5569 (START SLAVE UNTIL; after gaps), WL#8440 (until a view change).
"""

from typing import Protocol

from applier.checkpoint import Checkpoint
from applier.relay_queue import RelayEntry
from certifier.gtid_set import GtidSet


class Until(Protocol):
    """One condition."""

    is_met: bool

    def admits(self, entry: RelayEntry) -> bool:
        """Whether the next entry of the source is executed; it may be the last one."""
        ...


class AfterGtids:
    """All transactions of a set are executed."""

    def __init__(self, gtids: GtidSet, executed: GtidSet) -> None:
        self._left = gtids.difference(executed)
        self.is_met = not self._left

    def admits(self, entry: RelayEntry) -> bool:
        """Until nothing of the set is left."""
        if self.is_met:
            return False
        if entry.gtid and entry.gtid in self._left:
            self._left = self._left.difference(GtidSet.of(entry.gtid))
            self.is_met = not self._left
        return True


class BeforeGtids:
    """The next transaction is one of a set."""

    def __init__(self, gtids: GtidSet) -> None:
        self._gtids = gtids
        self.is_met = False

    def admits(self, entry: RelayEntry) -> bool:
        """Until one of them comes."""
        self.is_met = self.is_met or (entry.gtid is not None and entry.gtid in self._gtids)
        return not self.is_met


class AfterPosition:
    """Everything up to a place in the source's binary log is executed: `file`, and in it the
    transactions up to `sequence_number`.
    """

    def __init__(self, file: int, sequence_number: int) -> None:
        self._place = (file, sequence_number)
        self.is_met = False

    def admits(self, entry: RelayEntry) -> bool:
        """Until the one there, or else one that lies beyond."""
        place = (entry.header.file, entry.sequence_number)
        if self.is_met or place > self._place:
            self.is_met = True
            return False
        self.is_met = place == self._place
        return True


class AfterView:
    """A view change is executed: the one with this id, or a later one."""

    def __init__(self, view_id: int) -> None:
        self._view_id = view_id
        self.is_met = False

    def admits(self, entry: RelayEntry) -> bool:
        """Until it has come."""
        if self.is_met:
            return False
        self.is_met = entry.header.view_id >= self._view_id
        return True


class AfterGaps:
    """Nothing is missing before the newest transaction that was executed when the replica began."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._newest = checkpoint.version
        self._missing = checkpoint.missing
        self.is_met = not self._missing

    def admits(self, entry: RelayEntry) -> bool:
        """Until as many have come as were missing, or one that is newer than all executed ones."""
        if self.is_met or (entry.gtid and entry.version > self._newest):
            self.is_met = True
            return False
        self._missing -= entry.gtid is not None
        self.is_met = not self._missing
        return True
