"""Databases: transactions of different databases run in parallel, one worker a database.

The rule it keeps: transactions that update a common database are executed and committed in the
source's order; others in none, unless `preserve_commit_order` gives them one. A transaction of
several databases waits until one worker is left that has any of them, and hands it the others; one
of too many, or of unknown ones, runs alone. Parallel execution goes on by itself after both.

Source: WL#5569.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from applier.job import Job
from applier.relay_queue import RelayEntry
from applier.schemes import Consistency, Hold, Ordering
from applier.schemes.assigned_partitions import WORKER_QUEUE_MAX, AssignedPartitions, Share
from certifier.errors import InvalidSetting

DATABASES_MAX = 16


class Database:
    """A `Scheme`: `AssignedPartitions` by database."""

    def __init__(
        self,
        *,
        databases_max: int = DATABASES_MAX,
        worker_queue_max: int = WORKER_QUEUE_MAX,
        preserve_commit_order: bool = False,
    ) -> None:
        """`databases_max`: a transaction of more databases locks all of them.
        `worker_queue_max`: transactions in one worker's queue.
        """
        if databases_max < 1:
            raise InvalidSetting(name="databases_max", value=databases_max, expected="1 or more")
        self.consistency = Consistency.MOST_OF_THE_TIME
        self.ordering = Ordering.NONE
        if preserve_commit_order:
            self.consistency = Consistency.ANY_TIME
            self.ordering = Ordering.SOURCE
        self.hold: Hold | None = None
        self.assigned = AssignedPartitions(worker_queue_max, self._divide)
        self._databases_max = databases_max

    def take(self, pending: deque[RelayEntry], idle: Sequence[int], room: int) -> list[Job[Any]]:
        """`Scheme.take`."""
        jobs = self.assigned.take(pending, idle, room)
        self.hold = self.assigned.hold
        return jobs

    def committed(self, job: Job[Any]) -> None:
        """`Scheme.committed`."""
        self.assigned.committed(job)

    def check_invariants(self) -> None:
        """Those of the assigned partitions."""
        self.assigned.check_invariants()

    def _divide(self, entry: RelayEntry) -> Sequence[Share] | None:
        databases = entry.header.databases
        if databases is None or len(databases) > self._databases_max:
            return None
        return (Share(databases),)
