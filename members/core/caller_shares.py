"""Divides places in a buffer among callers, so that none takes those that others need.

The rule it keeps: a caller may hold at most as many places as are left free. One caller alone gets
half of them, two a third each, and a newcomer finds one free; a limit that is the same for all
would be too small for one caller or too large for many. Network switches divide their buffers so.

Source: Choudhury and Hahne, Dynamic queue length thresholds for shared-memory packet switches, 1998
"""


class Shares:
    """The places that callers hold. Cost of each method: O(1)."""

    def __init__(self, places_max: int, newcomer: int = 1) -> None:
        """Divides `places_max` places. A caller that holds none gets as many as it asks for where
        `newcomer` are free: what is larger than all that others leave free would wait for ever.
        """
        assert 0 < newcomer <= places_max, "nobody could hold a place"
        self.places_max = places_max
        self.taken = 0
        self._newcomer = newcomer
        self._held: dict[str, int] = {}

    def take(self, caller: str, places: int = 1) -> bool:
        """Gives the caller more places, one if it does not say how many, or returns False.

        >>> shares = Shares(6)
        >>> [shares.take(caller) for caller in ("one", "one", "one", "one", "two", "two")]
        [True, True, True, False, True, True]
        """
        held = self._held.get(caller, 0)
        needed = held + 2 * places - 1 if held else min(places, self._newcomer)
        if needed > self.places_max - self.taken:
            return False
        self.add(caller, places)
        return True

    def add(self, caller: str, places: int) -> None:
        """Counts places that the caller has taken without asking."""
        self._held[caller] = self._held.get(caller, 0) + places
        self.taken += places

    def give_back(self, caller: str, places: int = 1) -> None:
        """Takes back some of the caller's places."""
        held = self._held[caller] - places
        if held:
            self._held[caller] = held
        else:
            del self._held[caller]
        self.taken -= places

    def held(self, caller: str) -> int:
        """Returns the number of places that the caller has."""
        return self._held.get(caller, 0)

    def share(self, caller: str) -> int:
        """Returns the number of places that the caller may have beside the others."""
        return (self.held(caller) + self.places_max - self.taken + 1) // 2

    def check_invariants(self) -> None:
        """Asserts that the total equals the sum over all callers."""
        assert self.taken == sum(self._held.values())
        assert all(held > 0 for held in self._held.values())
