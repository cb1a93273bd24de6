"""Open sets of fragments, by run: read from the log, while their transactions are not read yet.

The rule it keeps: which sets are open follows from the log alone, so that all members take the same
fragments and find the same sets complete; and a run can leave no more open than the limits say.
Pure.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ...applier.queue.fragment_references import FragmentSet, is_reference
from .log_records import Fragment

PART = "not all of its fragments are in the log: send it again"
"""Why the group refuses a large transaction."""
SETS_MAX = 64
"""Sets that one run may have open; a fragment of a further set is not taken."""
SET_FRAGMENTS_MAX = 16_384
"""Fragments of a set."""
SETS_BYTES_MAX = 4 << 30
"""Bytes of fragments, as they are in the log, that one run may have open. These three are part of
what members agree on: no setting changes them."""

SetName = tuple[int, int]
"""Incarnation and number."""


@dataclass(slots=True)
class _Open:
    """Which fragments were taken, a bit for each index; and their bytes in the log."""

    taken: int = 0
    bytes: int = 0


class FragmentSets:
    """The open sets of all runs in the view."""

    def __init__(self) -> None:
        self._runs: dict[int, dict[int, _Open]] = {}

    def take(self, incarnation: int, fragment: Fragment) -> bool:
        """Notes a fragment, and returns whether it is to be stored."""
        if fragment.place >= SET_FRAGMENTS_MAX:
            return False
        sets = self._runs.setdefault(incarnation, {})
        if fragment.number not in sets and len(sets) >= SETS_MAX:
            return False
        if sum(each.bytes for each in sets.values()) + len(fragment.data) > SETS_BYTES_MAX:
            return False
        found = sets.setdefault(fragment.number, _Open())
        found.taken |= 1 << fragment.place
        found.bytes += len(fragment.data)
        return True

    def close(self, fragments: FragmentSet) -> bool:
        """Closes a set because its transaction has come; returns whether it was complete."""
        sets = self._runs.get(fragments.incarnation, {})
        found = sets.pop(fragments.number, None)
        if found is None or fragments.pieces > SET_FRAGMENTS_MAX:
            return False
        return found.taken == (1 << fragments.pieces) - 1

    def lacking(self, fragments: FragmentSet) -> list[int]:
        """Returns the indexes of those fragments of a set that were not taken yet."""
        found = self._runs.get(fragments.incarnation, {}).get(fragments.number, _Open())
        return [index for index in range(fragments.pieces) if not found.taken >> index & 1]

    def drop(self, name: SetName) -> bool:
        """Closes a set whose transaction will not come; returns False if it is not open."""
        incarnation, number = name
        return self._runs.get(incarnation, {}).pop(number, None) is not None

    def drop_referred(self, incarnation: int, payloads: Iterable[bytes]) -> list[SetName]:
        """Closes, and returns, the sets of a run that its `payloads` refer to, as the transactions
        with these payloads are not taken.
        """
        large = filter(is_reference, payloads)
        names = [(found.incarnation, found.number) for found in map(FragmentSet.of, large)]
        return [name for name in names if name[0] == incarnation and self.drop(name)]

    def keep_only(self, incarnations: Collection[int]) -> list[SetName]:
        """Closes the sets of all other runs, and returns them."""
        gone = [run for run in self._runs if run not in incarnations]
        return [(run, number) for run in gone for number in self._runs.pop(run)]

    @property
    def names(self) -> list[SetName]:
        """The open sets."""
        return [(run, number) for run, sets in self._runs.items() for number in sets]

    @property
    def bytes(self) -> int:
        """Bytes of the open sets, as they are in the log."""
        return sum(each.bytes for sets in self._runs.values() for each in sets.values())

    def dump(self) -> list[tuple[int, int, str, int]]:
        """Returns all open sets as JSON values."""
        return [
            (run, number, f"{each.taken:x}", each.bytes)
            for run, sets in self._runs.items()
            for number, each in sets.items()
        ]

    def restore(self, dumped: Iterable[tuple[int, int, str, int]]) -> None:
        """Replaces the sets by what `dump` returned."""
        self._runs = {}
        for run, number, taken, size in dumped:
            self._runs.setdefault(run, {})[number] = _Open(int(taken, 16), size)
