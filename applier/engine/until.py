"""Conditions at which a replica stops by itself: after or before GTIDs, at a position, at a view
change, or when it has no gaps.

Each entry is checked in the source's order, before it is passed on; once a condition is met,
nothing more is executed.

Source: WL#5569 (START SLAVE UNTIL; after gaps), WL#8440 (until a view change).
"""

from typing import Protocol

from ...certifier.gtid_set import GtidSet
from ..queue.relay_group import RelayEntry
from ..queue.target_progress import Checkpoint


class Until(Protocol):
    """One condition to stop."""

    is_met: bool

    def admits(self, entry: RelayEntry) -> bool:
        """Returns whether the next entry of the source is executed; it may be the last one."""
        ...


class AfterGtids:
    """Stops after all transactions of a set."""

    def __init__(self, gtids: GtidSet, executed: GtidSet) -> None:
        self._left = gtids.difference(executed)
        self.is_met = not self._left

    def admits(self, entry: RelayEntry) -> bool:
        """Returns True until all of the set were admitted."""
        if self.is_met:
            return False
        if entry.gtid and entry.gtid in self._left:
            self._left = self._left.difference(GtidSet.of(entry.gtid))
            self.is_met = not self._left
        return True


class BeforeGtids:
    """Stops before the first transaction of a set."""

    def __init__(self, gtids: GtidSet) -> None:
        self._gtids = gtids
        self.is_met = False

    def admits(self, entry: RelayEntry) -> bool:
        """Returns True until a transaction of the set comes."""
        self.is_met = self.is_met or (entry.gtid is not None and entry.gtid in self._gtids)
        return not self.is_met


class AfterPosition:
    """Stops after a position in the source's binary log: `file`, and in it the transaction
    `sequence_number`.
    """

    def __init__(self, file: int, sequence_number: int) -> None:
        self._place = (file, sequence_number)
        self.is_met = False

    def admits(self, entry: RelayEntry) -> bool:
        """Returns True up to the transaction at the position; False for any beyond it."""
        place = (entry.header.file, entry.sequence_number)
        if self.is_met or place > self._place:
            self.is_met = True
            return False
        self.is_met = place == self._place
        return True


class AfterView:
    """Stops after the view change with this id, or a later one."""

    def __init__(self, view_id: int) -> None:
        self._view_id = view_id
        self.is_met = False

    def admits(self, entry: RelayEntry) -> bool:
        """Returns True up to and including that view change."""
        if self.is_met:
            return False
        self.is_met = entry.header.view_id >= self._view_id
        return True


class AfterGaps:
    """Stops when nothing is missing before the newest transaction executed at the start."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._newest = checkpoint.version
        self._missing = checkpoint.missing
        self.is_met = not self._missing

    def admits(self, entry: RelayEntry) -> bool:
        """Returns True until as many came as were missing; False for a newer transaction."""
        if self.is_met or (entry.gtid and entry.version > self._newest):
            self.is_met = True
            return False
        self._missing -= entry.gtid is not None
        self.is_met = not self._missing
        return True
