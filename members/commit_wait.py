"""Commits that wait for company, so that more of them are one group commit.

The rule it keeps: nothing waits longer than it was told to, nothing overtakes, and with no count
nothing waits at all. Pure: the caller has the clock and the timer.

Source: MDEV-4506, `binlog_commit_wait_count` and `binlog_commit_wait_usec`.
Differs: all that a member delivers waits, not only its own clients' transactions: the total order
is the commit order.
"""

from collections.abc import Sequence

from applier.relay_queue import RelayEntry


class CommitWait:
    """Entries on their way to the applier."""

    __slots__ = ("_count", "_transactions", "_usec", "_waiting", "deadline_us")

    def __init__(self, count: int, usec: int) -> None:
        """Waits at most `usec` microseconds for `count` transactions; 0 of either: not at all."""
        self._count = count if usec else 0
        self._usec = usec
        self._waiting: list[RelayEntry] = []
        self._transactions = 0
        self.deadline_us: int | None = None
        """When what waits has to go; None: nothing waits."""

    def add(self, entries: Sequence[RelayEntry], now_us: int) -> Sequence[RelayEntry]:
        """Takes the next entries, and returns what goes to the applier now."""
        if not self._count:
            return entries
        self._waiting += entries
        self._transactions += sum(entry.gtid is not None for entry in entries)
        if self._transactions >= self._count:
            return self.release()
        if self._waiting and self.deadline_us is None:
            self.deadline_us = now_us + self._usec
        return ()

    def release(self) -> Sequence[RelayEntry]:
        """What has waited goes, however few they are."""
        released, self._waiting = self._waiting, []
        self._transactions = 0
        self.deadline_us = None
        return released
