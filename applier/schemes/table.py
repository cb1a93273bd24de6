"""Tables: a transaction is divided into one job a table, and each table is with one worker.

The rule it keeps: the changes of a table are executed and committed in the source's order. Those of
different tables are not, not even where one transaction made them: a reader may see a part of it.
A transaction whose tables are not known runs alone and is not divided.

Source: WL#4648, P2: "make a job thread execute all events on a specific table". Which worker has a
table is said by WL#5569, whose goals name a partitioning per table.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from applier.job import Job
from applier.parts import Part
from applier.relay_queue import RelayEntry
from applier.schemes import Consistency, Hold, Ordering
from applier.schemes.assigned_partitions import WORKER_QUEUE_MAX, AssignedPartitions, Share


class Table:
    """A `Scheme`: `AssignedPartitions` by table."""

    consistency = Consistency.EVENTUAL
    ordering = Ordering.NONE

    def __init__(self, *, worker_queue_max: int = WORKER_QUEUE_MAX) -> None:
        """`worker_queue_max`: jobs in one worker's queue."""
        self.hold: Hold | None = None
        self.assigned = AssignedPartitions(worker_queue_max, _divide)

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


def _divide(entry: RelayEntry) -> Sequence[Share] | None:
    tables = entry.header.tables
    if tables is None:
        return None
    if len(tables) < 2:
        return (Share(tables),)
    return [Share((table,), Part(table=table)) for table in tables]
