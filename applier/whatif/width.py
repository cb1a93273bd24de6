"""The width of parallelism over time: how many workers execute, in buckets of equal length.

There are at most 256 buckets, however long the run: when they are full, each two become one of
twice the length. Sums are exact.
"""

from array import array

BUCKETS_MAX = 256


class WidthSeries:
    """Keeps sums of worker time, one a bucket."""

    def __init__(self) -> None:
        self.width_max = 0
        self.bucket_us = 1
        self._areas_us = array("Q", [0]) * BUCKETS_MAX

    def add(self, start_us: int, length_us: int, width: int) -> None:
        """Adds an interval of time in which `width` workers executed; intervals come in order.

        Cost: O(1), and O(buckets) if it is long.
        """
        self.width_max = max(self.width_max, width)
        stop_us = start_us + length_us
        while stop_us > self.bucket_us * BUCKETS_MAX:
            self._fold()
        bucket_us = self.bucket_us
        while start_us < stop_us:
            bucket = start_us // bucket_us
            border_us = min(stop_us, (bucket + 1) * bucket_us)
            self._areas_us[bucket] += width * (border_us - start_us)
            start_us = border_us

    def areas_us(self, stop_us: int) -> list[int]:
        """Returns the buckets up to `stop_us`; divided by their length they are mean widths."""
        return self._areas_us[: -(-stop_us // self.bucket_us)].tolist()

    def _fold(self) -> None:
        areas = self._areas_us
        pairs = zip(areas[::2], areas[1::2], strict=True)
        folded = array("Q", [one + other for one, other in pairs])
        folded.extend(array("Q", [0]) * (BUCKETS_MAX // 2))
        self._areas_us = folded
        self.bucket_us *= 2
