"""The queue of executing transactions, in the order in which they were assigned to workers.

Its low-water mark is the newest transaction that is known to be committed with all older ones. The
queue holds runs: transactions that are assigned together and committed together.

Source: WL#7165, "Slave logic"; the server calls this queue GAQ.
"""

from collections import deque
from itertools import pairwise


class AssignedQueue:
    """Holds the runs that are not committed yet, or wait for an older one that is not.

    >>> queue = AssignedQueue()
    >>> queue.append(2); queue.append(3, 5); queue.append(6)
    >>> queue.done(3); queue.oldest, queue.low_water_mark
    (2, 0)
    >>> queue.done(2); queue.oldest, queue.low_water_mark
    (6, 5)
    """

    __slots__ = ("_done", "_runs", "low_water_mark")

    def __init__(self) -> None:
        self._runs: deque[tuple[int, int]] = deque()
        self._done: set[int] = set()
        self.low_water_mark = 0

    def append(self, sequence_number: int, last: int | None = None) -> None:
        """Adds a transaction, or a run up to the sequence number `last`.

        Numbers ascend; they may start again, lower, when the queue is empty.
        """
        last = sequence_number if last is None else last
        assert sequence_number <= last, f"a run from {sequence_number} to {last}"
        assert not self._runs or self._runs[-1][1] < sequence_number, "assigned out of order"
        self._runs.append((sequence_number, last))

    def done(self, sequence_number: int) -> None:
        """Marks the run that begins with a sequence number as committed. Cost: O(1) amortised."""
        assert sequence_number not in self._done, f"{sequence_number} is done already"
        runs, done = self._runs, self._done
        done.add(sequence_number)
        while runs and runs[0][0] in done:
            first, self.low_water_mark = runs.popleft()
            done.remove(first)

    @property
    def oldest(self) -> int | None:
        """Smallest sequence number that is executing (WL#7165's `transaction_sequence[0]`)."""
        return self._runs[0][0] if self._runs else None

    def __len__(self) -> int:
        """Returns the number of runs, those included that are done but wait for an older one."""
        return len(self._runs)

    def check_invariants(self) -> None:
        """Asserts that runs ascend without overlap, and that no unknown or oldest run is done."""
        assert all(last < first for (_, last), (first, _) in pairwise(self._runs))
        firsts = {first for first, _ in self._runs}
        assert self._done <= firsts
        assert self.oldest is None or self.oldest not in self._done
