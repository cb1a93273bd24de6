"""Measures how long a member's own commits spend in each stage."""

from collections.abc import Iterator

STAGES = ("queued", "ordered", "committed")
"""Taken but not sent; sent but not read back; read back but not visible yet."""


class StageTimes:
    """Seconds spent in each stage since the start, and how many submissions passed it."""

    __slots__ = ("_count", "_seconds")

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._count = dict.fromkeys(STAGES, 0)

    def add(self, stage: str, seconds: float) -> None:
        """Counts one submission's time in a stage."""
        self._seconds[stage] += seconds
        self._count[stage] += 1

    def __iter__(self) -> Iterator[tuple[str, float, int]]:
        """Yields each stage with its seconds and its count."""
        for stage in STAGES:
            yield stage, self._seconds[stage], self._count[stage]
