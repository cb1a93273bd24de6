"""The pace of a history: how many transactions an applier executed, and in which time."""

from typing import NamedTuple

BUCKETS = 120
"""Parts of a history's time, or of its rows, for what is drawn over these."""


class Pace(NamedTuple):
    """The numbers of a history's certified transactions: how many, with which stamps and times.

    `remote`: executed by an applier, `stamped`, `timed` and `ticked` of these; `alone`: of these,
    those without write set. The times are of deciding, the sums of execution; None: not known. The
    numbers are those of the first and the last of their rows.
    """

    h: int
    rows: int
    certified: int
    remote: int
    stamped: int
    timed: int
    ticked: int
    alone: int
    first_us: int | None
    last_us: int | None
    work_us: int
    alone_us: int
    first_number: int
    last_number: int

    @property
    def measured(self) -> bool:
        """True if execution times are known, of half of the transactions at least."""
        return self.timed > 0 and 2 * self.timed >= self.remote

    @property
    def unit(self) -> int:
        """Time of a transaction whose time is not known: the mean of the others."""
        return max(self.work_us // self.timed, 1) if self.measured else 1

    @property
    def alone_work(self) -> int:
        """Execution time of those without write set."""
        return self.alone_us if self.measured else self.alone

    @property
    def numbers(self) -> int:
        """Number of rows from the first to the last of them."""
        return self.last_number - self.first_number + 1

    @property
    def dated(self) -> bool:
        """True if the times of the decisions are known."""
        return self.first_us is not None and self.last_us != self.first_us

    @property
    def bucket_size(self) -> int:
        """Length of a bucket, in microseconds or rows."""
        if self.dated:
            assert self.first_us is not None and self.last_us is not None
            return (self.last_us - self.first_us) // BUCKETS + 1
        return self.numbers // BUCKETS + 1
