"""A member's own clock in simulated time: it goes at its own rate, and jumps."""

DRIFT = 0.15
"""How much quicker or slower than time a clock may go: reports still come before a suspicion."""


class Clock:
    """Knows the time only by its own rate; it never goes back, as a monotonic one never does."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.offset_ms = 0
        self.stepped_ms = -(1 << 40)
        """The time of its last jump."""

    def at(self, now_ms: int) -> int:
        """What it shows at a time."""
        return self.offset_ms + int(now_ms * self.rate)
