"""Progress of a copy, in numbers and in words, as members, status and backups show it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryProgress:
    """Progress of a copy."""

    donor: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_second: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at the rate so far; None while there is no rate."""
        if not self.bytes_per_second:
            return None
        return (self.bytes_total - self.bytes_done) / self.bytes_per_second

    def __str__(self) -> str:
        if not self.donor:
            return "looking for a donor"
        share = self.bytes_done / self.bytes_total if self.bytes_total else 0.0
        left = self.seconds_left
        estimate = "" if left is None else f", {left:.0f} s left"
        return f"{share:.0%} of {readable(self.bytes_total)} from {self.donor}{estimate}".replace(
            "%", " %"
        )


def readable(size: float) -> str:
    """Returns a number of bytes in words.

    >>> readable(999), readable(1_234_567_890)
    ('999 B', '1.2 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
