"""Limits the transactions that a member may send, so that no member of the group is left behind.

Without it a slow member falls behind without end, and its relay queue grows. The rule it keeps:
transactions that are certified and not applied everywhere stay below a limit. The rest of it is
credit, and each member of the view takes at most its share: with a limit of 1,000, a slowest member
that lags by 400 and three members, each may send 200. The group goes on at the pace of its slowest
member, without stopping, and the status names that member. Pure.

Differs: Group Replication computes quotas once a second from queue lengths, Galera stops all
members until a queue is short again.
"""

from collections.abc import Iterable
from dataclasses import dataclass

UNLIMITED = 1 << 31


@dataclass(slots=True)
class FlowControl:
    """What one member knows of the lag of its group."""

    slowest: str = ""
    """Name of the member that lags most; empty if none lags."""
    lag: int = 0
    """Transactions that are certified and that this member has not applied."""
    held_ms: int = 0
    """Milliseconds that transactions waited here for credit, since the start."""
    _held_since_ms: int | None = None

    def measure(self, newest_version: int, applied: Iterable[tuple[str, int]]) -> None:
        """Notes the applied version of each member; skips one that has not reported yet (0)."""
        lags = ((newest_version - version, name) for name, version in applied if version)
        self.lag, self.slowest = max(lags, default=(0, ""))
        if self.lag <= 0:
            self.lag, self.slowest = 0, ""

    def credit(self, lag_max: int, members: int, in_flight: int) -> int:
        """Returns the number of transactions that may be sent now.

        Args:
            lag_max: The limit of the group; 0: there is none.
            members: How many share what is left of it.
            in_flight: What this member has sent and not read back.
        """
        if not lag_max:
            return UNLIMITED
        share = (max(lag_max, members) - self.lag) // max(members, 1)
        return max(0, share - in_flight)

    def note(self, is_held: bool, now_ms: int) -> None:
        """Counts the time for which transactions wait for credit."""
        if self._held_since_ms is not None:
            self.held_ms += now_ms - self._held_since_ms
        self._held_since_ms = now_ms if is_held else None

    def explanation(self) -> str:
        """Returns which member slows the group, in words; empty if none does."""
        if self._held_since_ms is None or not self.slowest:
            return ""
        return f"{self.slowest} slows the group: it has {self.lag:,} transactions to apply"
