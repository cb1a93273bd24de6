"""Decides how often a member that fell out of its group tries to come back, and when.

The rule it keeps: the first try is made at once, those after it an interval apart; a member that
was back for as long as an interval has all its tries again. Pure.

Source: MySQL 8.4 Reference Manual, 20.7.7.3, `group_replication_autorejoin_tries`.
Differs: the server waits before every try but the first five minutes, which cannot be changed.
"""


class Rejoins:
    """The tries of one process."""

    def __init__(self, tries_max: int, interval_ms: int) -> None:
        self._tries_max = tries_max
        self._interval_ms = interval_ms
        self._tries = 0
        self._joined_ms: int | None = None

    def joined(self, now_ms: int) -> None:
        """Notes that the member is ONLINE."""
        self._joined_ms = now_ms

    def next_delay_ms(self, now_ms: int) -> int | None:
        """Returns milliseconds to the next try, after a fall or a failed try; None: no more."""
        joined_ms, self._joined_ms = self._joined_ms, None
        if joined_ms is not None and now_ms - joined_ms >= self._interval_ms:
            self._tries = 0
        if self._tries == self._tries_max:
            return None
        self._tries += 1
        return 0 if self._tries == 1 else self._interval_ms

    @property
    def tries(self) -> int:
        """Returns the number of tries since the member was settled in its group."""
        return self._tries
