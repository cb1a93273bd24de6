"""A token bucket: says how long to wait before a number of bytes may go.

The rule it keeps: over any time, no more goes than the rate allows and one burst of it. Pure: time
comes in as an argument.
"""

BURST_SECONDS = 0.1


class Throttle:
    """Limits bytes to a rate per second; a rate of 0 is no limit.

    >>> throttle = Throttle(1_000)
    >>> throttle.delay_seconds(100, 0.0), throttle.delay_seconds(500, 0.0)
    (0.0, 0.5)
    """

    def __init__(self, bytes_per_second: int) -> None:
        assert bytes_per_second >= 0
        self.bytes_per_second = bytes_per_second
        self._tokens = bytes_per_second * BURST_SECONDS
        self._seconds = 0.0

    def delay_seconds(self, size: int, now_seconds: float) -> float:
        """Takes `size` bytes, and returns how many seconds after `now_seconds` they may go."""
        if not self.bytes_per_second:
            return 0.0
        gained = max(0.0, now_seconds - self._seconds) * self.bytes_per_second
        self._seconds = max(self._seconds, now_seconds)
        self._tokens = min(self._tokens + gained, self.bytes_per_second * BURST_SECONDS)
        self._tokens -= size
        return max(0.0, -self._tokens / self.bytes_per_second)
