"""The logical clock: turns a transaction's dependency into `last_committed` and `sequence_number`.

A transaction waits for the newest transaction in this observer's relay queue that it depends on,
and at least for the window's lower edge `last_committed_global` (WL#8440, AL1 as its examples have
it). Example: with the edge at 5, dependency 7 gives `last_committed` 7, dependency 3 gives 5.
"""

from collections.abc import Sequence

FIRST_LAST_COMMITTED = 1
FIRST_SEQUENCE_NUMBER = 2
"""First stamps: above those of a view change, (0, 0), which no transaction may have (WL#8440,
trx.SN).
"""


class LogicalClock:
    """Holds the certifier's two counters; four methods move them."""

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
        """Returns the stamps of a transaction; `dependency` is the sequence number of the newest
        transaction that it depends on, 0 if there is none.
        """
        sequence_number = self.sequence_number
        self.sequence_number = sequence_number + 1
        last_committed = self.last_committed_global
        return (dependency if dependency > last_committed else last_committed), sequence_number

    def stamp_all(self, dependencies: Sequence[int]) -> tuple[list[int], range]:
        """Returns the stamps of transactions that come one after the other, as `stamp` of each."""
        first = self.sequence_number
        self.sequence_number = first + len(dependencies)
        last_committed = self.last_committed_global
        # Most messages: no transaction of it rewrites a row that a remote one wrote.
        if not any(dependencies):
            return [last_committed] * len(dependencies), range(first, self.sequence_number)
        committed = [max(dependency, last_committed) for dependency in dependencies]
        return committed, range(first, self.sequence_number)

    def stamp_alone(self) -> tuple[int, int]:
        """Returns the stamps of a transaction without a write set, which runs after everything
        before it and before everything after it.

        Differs: AL1's text would stamp it with `last_committed_global`; the example EX4 has the
        number before its own.
        """
        sequence_number = self.sequence_number
        self.sequence_number = sequence_number + 1
        # Its rows are not known, so everything after it waits for it.
        self.last_committed_global = sequence_number
        return sequence_number - 1, sequence_number

    def close_window(self) -> None:
        """Makes later transactions wait for all that were stamped so far: the certifier can no
        longer find out which of them they depend on.

        Differs: the text takes `parallel_applier_sequence_number`, the next one; EX6 has the last
        assigned one.
        """
        self.last_committed_global = self.sequence_number - 1

    def raise_window(self, sequence_number: int) -> None:
        """Makes later transactions wait for the one stamped `sequence_number` and all before it."""
        assert sequence_number < self.sequence_number
        # Never lowered: items that were purged earlier may have had writers with larger numbers.
        self.last_committed_global = max(self.last_committed_global, sequence_number)

    def reset(self) -> None:
        """Sets both counters to their first values, as a member does that joins."""
        self.last_committed_global = FIRST_LAST_COMMITTED
        self.sequence_number = FIRST_SEQUENCE_NUMBER

    def check_invariants(self) -> None:
        """Asserts that the window's edge was assigned, or is the one before the first number."""
        assert FIRST_LAST_COMMITTED <= self.last_committed_global < self.sequence_number
