"""The logical clock: a transaction may start if everything up to its `last_committed` is committed.

The rule it keeps is C3 of WL#7165: "Slave can execute a transaction if the smallest sequence_number
among all executing transactions is greater than transaction.last_committed." Executing means
scheduled and not committed: `AssignedQueue` has those, in the order in which they were assigned to
workers. Its low-water mark is the newest transaction that is known to be committed with all older
ones. It holds runs: transactions that are assigned together and committed together.

Source: WL#7165, with its two policies of distribution, and "Slave logic"; the server calls the
queue GAQ.
Differs: a worker may get a run of transactions that may start together in place of one.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

from ...certifier.errors import InvalidSetting
from ..queue.job import Job
from ..queue.relay_group import RelayEntry
from . import Cause, Hold, kept_or_not


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


class Policy(Enum):
    """The time at which a transaction is scheduled, in the words of WL#7165."""

    AT_MOST_ONE = "at-most-one"
    """When there is an idle worker for it."""
    FIRST_AVAILABLE = "first-available"
    """As soon as C3 allows it, into a queue that all workers share: each takes from its end."""


class LogicalClock:
    """Implements C3 over an `AssignedQueue`.

    A transaction with the sequence number 0 runs alone (WL#8440, View_change_log_event; WL#7165,
    fall back to sequential execution): it waits until nothing executes, and its 0 is greater than
    no `last_committed`. Only after it may numbers start again. Local transactions wait for none and
    none waits for them: the certifier does not stamp them.
    """

    def __init__(
        self,
        policy: Policy = Policy.AT_MOST_ONE,
        *,
        job_transactions_max: int = 1,
        job_transactions_min: int = 1,
        preserve_commit_order: bool = True,
    ) -> None:
        """Gives a worker at most `job_transactions_max` transactions at a time, and at least
        `job_transactions_min` before another worker is woken.

        Raises:
            InvalidSetting: the limits are less than 1, or the smallest is above the largest.
        """
        for name, value, most in (
            ("job_transactions_max", job_transactions_max, job_transactions_max),
            ("job_transactions_min", job_transactions_min, job_transactions_max),
        ):
            if not 1 <= value <= most:
                expected = "1 or more" if value < 1 else f"job_transactions_max ({most}) or less"
                raise InvalidSetting(name=name, value=value, expected=expected)
        self.consistency, self.ordering = kept_or_not(preserve_commit_order)
        self.hold: Hold | None = None
        self.assigned = AssignedQueue()
        self._first_available = policy is Policy.FIRST_AVAILABLE
        self._job_max = job_transactions_max
        self._job_min = job_transactions_min
        self._scheduled: deque[RelayEntry] = deque()

    def take(self, pending: deque[RelayEntry], idle: Sequence[int], room: int) -> list[Job[Any]]:
        """Schedules the transactions that C3 allows and splits them into runs for idle workers."""
        scheduled = self._scheduled
        if pending and idle and room > 0 and not self.assigned and not scheduled:
            head = pending[0]
            # It runs alone, and nothing is scheduled or executing: its turn has come.
            if not head.sequence_number and not head.local:
                jobs = [self._start([pending.popleft()], idle[0])]
                self._startable(pending, 0, room)
                return jobs
        most = len(idle) * self._job_max
        count = self._startable(pending, room if self._first_available else min(room, most), room)
        for _ in range(count):
            scheduled.append(pending.popleft())
        jobs = self._split(idle, min(len(scheduled), most)) if idle and scheduled else []
        if scheduled and not pending:
            self.hold = Hold(Cause.WORKER)
        return jobs

    def committed(self, job: Job[Any]) -> None:
        """Marks the job's run as done; a run of local transactions was never assigned."""
        for entry in job.entries:
            # A run is in the queue under its first remote transaction.
            if not entry.local:
                self.assigned.done(entry.sequence_number)
                return

    def _startable(self, pending: deque[RelayEntry], limit: int, room: int) -> int:
        """Returns the number of transactions at the head of `pending` that may start together, at
        most `limit`; sets `hold` to the reason for which the one after them waits.
        """
        oldest = self._oldest()
        count = 0
        for _, _, _, last_committed, sequence_number, local, _, _ in pending:
            if not local:
                if not sequence_number:
                    self.hold = Hold(Cause.ALONE)
                    return count
                # Nothing executes. Numbers ascend in the queue, so the first that starts is the
                # smallest.
                if oldest is None:
                    oldest = sequence_number
                # C3: the smallest sequence number that executes has to be greater than
                # `last_committed`.
                elif last_committed >= oldest:
                    # An oldest number of 0 is a view change, for which everything waits.
                    before = Hold(Cause.CLOCK, str(last_committed))
                    self.hold = before if oldest else Hold(Cause.TRANSACTION)
                    return count
            if count >= limit:
                self.hold = Hold(Cause.QUEUE if count >= room else Cause.WORKER)
                return count
            count += 1
        self.hold = None
        return count

    def _oldest(self) -> int | None:
        """Returns the smallest sequence number that is scheduled and not committed."""
        oldest = self.assigned.oldest
        if oldest is None and self._scheduled:
            oldest = next((one.sequence_number for one in self._scheduled if not one.local), None)
        return oldest

    def _split(self, idle: Sequence[int], count: int) -> list[Job[Any]]:
        """Starts the first `count` scheduled transactions as runs of nearly equal size, on no more
        workers than `job_transactions_min` allows.
        """
        popleft = self._scheduled.popleft
        fewest = -(-count // self._job_max)
        workers = max(fewest, min(len(idle), count // self._job_min))
        size, larger = divmod(count, workers)
        return [
            self._start([popleft() for _ in range(size + (number < larger))], idle[number])
            for number in range(workers)
        ]

    def _start(self, entries: list[RelayEntry], worker: int) -> Job[Any]:
        """Makes a job of entries, and puts the remote ones into the queue of executing ones."""
        numbers = [entry.sequence_number for entry in entries if not entry.local]
        if numbers:
            self.assigned.append(numbers[0], numbers[-1])
        return Job(entries, worker)

    def check_invariants(self) -> None:
        """Asserts that only the first-available policy keeps any, all stamped or local."""
        self.assigned.check_invariants()
        assert self._first_available or not self._scheduled
        assert all(one.local or one.sequence_number for one in self._scheduled)
