"""The logical clock: from what a transaction depends on to `last_committed` and `sequence_number`.

The rule it keeps (WL#8440, AL1 as its examples have it): a transaction waits for the newest
transaction in this observer's relay queue that it depends on, never for less than the window's
lower edge `last_committed_global`.
"""

FIRST_LAST_COMMITTED = 1
FIRST_SEQUENCE_NUMBER = 2
"""Stamps start above the view change's (0, 0), which they must never meet (WL#8440, trx.SN)."""


class LogicalClock:
    """The two counters of the certifier, and the four things that move them."""

    __slots__ = ("last_committed_global", "sequence_number")

    def __init__(
        self,
        last_committed_global: int = FIRST_LAST_COMMITTED,
        sequence_number: int = FIRST_SEQUENCE_NUMBER,
    ) -> None:
        self.last_committed_global = last_committed_global
        self.sequence_number = sequence_number
        self.check_invariants()

    def stamp(self, dependency: int) -> tuple[int, int]:
        """Stamps a transaction whose newest dependency has the sequence number `dependency` (0:
        it has none).
        """
        sequence_number = self.sequence_number
        self.sequence_number = sequence_number + 1
        last_committed = self.last_committed_global
        return (dependency if dependency > last_committed else last_committed), sequence_number

    def stamp_alone(self) -> tuple[int, int]:
        """Stamps a transaction without write set: after everything before it, before everything
        after it.

        Differs: AL1's text would stamp it with `last_committed_global`; the example EX4 has the
        number before its own.
        """
        sequence_number = self.sequence_number
        self.sequence_number = sequence_number + 1
        self.last_committed_global = sequence_number
        return sequence_number - 1, sequence_number

    def close_window(self) -> None:
        """Makes what follows wait for all that was stamped so far: dependencies on it can no longer
        be told.

        Differs: the text takes `parallel_applier_sequence_number`, the next one; EX6 has the last
        assigned one.
        """
        self.last_committed_global = self.sequence_number - 1

    def raise_window(self, sequence_number: int) -> None:
        """Makes what follows wait for the transaction stamped `sequence_number` and all before
        it.
        """
        assert sequence_number < self.sequence_number
        self.last_committed_global = max(self.last_committed_global, sequence_number)

    def reset(self) -> None:
        """Starts again, as a member does that joins."""
        self.last_committed_global = FIRST_LAST_COMMITTED
        self.sequence_number = FIRST_SEQUENCE_NUMBER

    def check_invariants(self) -> None:
        """The window's edge is a number that was assigned, or the one before the first."""
        assert FIRST_LAST_COMMITTED <= self.last_committed_global < self.sequence_number
