"""The logical clock: a transaction may start if everything up to its `last_committed` is committed.

The rule it keeps is C3 of WL#7165: "Slave can execute a transaction if the smallest sequence_number
among all executing transactions is greater than transaction.last_committed." Executing means
assigned and not committed.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from applier.assigned_queue import AssignedQueue
from applier.job import Execution, Job
from applier.relay_queue import RelayEntry


class LogicalClock:
    """C3 over an `AssignedQueue`.

    Stamps of 0 and 0 run alone (WL#8440, View_change_log_event): such a transaction waits until
    nothing executes, and its sequence number 0 is greater than no `last_committed`. Local
    transactions are neither waited for nor wait: the certifier stamps nothing by them."""

    def __init__(self) -> None:
        self.assigned = AssignedQueue()

    def take(self, pending: deque[RelayEntry], transactions_max: int) -> list[RelayEntry]:
        """Removes and returns the head of `pending` as far as it may start now."""
        popleft = pending.popleft
        count = self._startable(islice(pending, transactions_max))
        return [popleft() for _ in range(count)]

    def started(self, job: Job[Execution]) -> None:
        """Puts the job's remote transactions into the queue of executing ones."""
        numbers = [entry.sequence_number for entry in job.entries if not entry.local]
        if numbers:
            self.assigned.append(numbers[0], numbers[-1])

    def committed(self, job: Job[Execution]) -> None:
        """Marks them as done."""
        for entry in job.entries:
            if not entry.local:
                self.assigned.done(entry.sequence_number)
                return

    def _startable(self, entries: Iterable[RelayEntry]) -> int:
        """How many of the entries, from the first on, may start together."""
        oldest = self.assigned.oldest
        count = 0
        for _, _, _, last_committed, sequence_number, local, _ in entries:
            if not local:
                if not sequence_number:
                    return count or int(oldest is None)
                if oldest is None:
                    oldest = sequence_number
                elif last_committed >= oldest:
                    return count
            count += 1
        return count

    def check_invariants(self) -> None:
        """Those of the queue."""
        self.assigned.check_invariants()
