"""Pauses between attempts: the one policy of whoever tries again.

Without it, all who failed at once would come again at once, and at a server that is starting they
would be what keeps it from that.
"""

import random


class Backoff:
    """Draws each pause by chance from a range that doubles, so that those who failed together come
    again one by one.

    >>> pauses = Backoff(first_ms=10, max_ms=250)
    >>> 0 <= pauses.next_s() <= 0.01, all(pauses.next_s() <= 0.25 for _ in range(9))
    (True, True)
    """

    def __init__(self, *, first_ms: int, max_ms: int) -> None:
        """Begins with pauses of at most `first_ms` milliseconds; none gets longer than `max_ms`."""
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._longest_ms = first_ms

    def next_s(self, max_ms: int | None = None) -> float:
        """Returns the seconds until the next attempt; `max_ms`: this pause is no longer."""
        longest_ms = min(self._longest_ms, self._max_ms if max_ms is None else max_ms)
        self._longest_ms = min(2 * self._longest_ms, self._max_ms)
        return random.uniform(0, longest_ms) / 1000

    def reset(self) -> None:
        """Begins again with short pauses: an attempt has succeeded."""
        self._longest_ms = self._first_ms
