"""Holds transactions back for a moment, so that more of them form one group commit.

The rule it keeps: no transaction waits longer than `usec`, none overtakes another, and with a count
of 0 none waits. Pure: the caller has the clock and the timer.

Source: MDEV-4506, `binlog_commit_wait_count` and `binlog_commit_wait_usec`.
Differs: all that a member delivers waits, not only its own clients' transactions: the total order
is the commit order.
"""

from collections.abc import Sequence

from ...applier.queue.relay_group import RelayEntry


class CommitWait:
    """Entries that wait to be passed to the applier."""

    __slots__ = ("_count", "_transactions", "_usec", "_waiting", "deadline_us")

    def __init__(self, count: int, usec: int) -> None:
        """Waits at most `usec` microseconds for `count` transactions; with 0 of either, never."""
        self._count = count if usec else 0
        self._usec = usec
        self._waiting: list[RelayEntry] = []
        self._transactions = 0
        self.deadline_us: int | None = None
        """When the waiting entries have to go, in microseconds; None: none wait."""

    def add(self, entries: Sequence[RelayEntry], now_us: int) -> Sequence[RelayEntry]:
        """Takes the next entries at `now_us`, and returns those to pass to the applier now."""
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
        """Returns all entries that wait, however few they are."""
        released, self._waiting = self._waiting, []
        self._transactions = 0
        self.deadline_us = None
        return released
