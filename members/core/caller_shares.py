"""Divides places in a buffer among callers, so that none takes those that others need.

The rule it keeps: a caller may hold at most as many places as are left free. One caller alone gets
half of them, two a third each, and a newcomer finds one free; a limit that is the same for all
would be too small for one caller or too large for many. Network switches divide their buffers so.

Source: Choudhury and Hahne, Dynamic queue length thresholds for shared-memory packet switches, 1998
"""


class Shares:
    """The places that callers hold. Cost of each method: O(1)."""

    def __init__(self, places_max: int) -> None:
        assert places_max > 0, "nobody could hold a place"
        self.places_max = places_max
        self.taken = 0
        self._held: dict[str, int] = {}

    def take(self, caller: str) -> bool:
        """Gives the caller one more place, or returns False.

        >>> shares = Shares(6)
        >>> [shares.take(caller) for caller in ("one", "one", "one", "one", "two", "two")]
        [True, True, True, False, True, True]
        """
        held = self._held.get(caller, 0)
        if held >= self.places_max - self.taken:
            return False
        self._held[caller] = held + 1
        self.taken += 1
        return True

    def give_back(self, caller: str) -> None:
        """Takes back one of the caller's places."""
        held = self._held[caller] - 1
        if held:
            self._held[caller] = held
        else:
            del self._held[caller]
        self.taken -= 1

    def held(self, caller: str) -> int:
        """Returns how many places the caller has."""
        return self._held.get(caller, 0)

    def share(self, caller: str) -> int:
        """Returns how many places the caller may have, given what the others have."""
        return (self.held(caller) + self.places_max - self.taken + 1) // 2

    def check_invariants(self) -> None:
        """Asserts that the total equals the sum over all callers."""
        assert self.taken == sum(self._held.values()) <= self.places_max
        assert all(held > 0 for held in self._held.values())
