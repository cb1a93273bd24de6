"""The table scheme: a transaction is divided into one job a table, and each table has one worker.

The changes of a table are executed and committed in the source's order. Changes of different tables
are not, even if one transaction made them: a reader may see a part of it. A transaction whose
tables are not known runs alone and is not divided.

Source: WL#4648, P2: "make a job thread execute all events on a specific table". Which worker has a
table is said by WL#5569, whose goals name a partitioning per table.
"""

from collections.abc import Sequence

from ..queue.relay_group import RelayEntry
from ..queue.row_parts import Part
from . import Consistency, Ordering
from .assigned_partitions import (
    WORKER_QUEUE_MAX,
    AssignedPartitions,
    Share,
)


class ByTable(AssignedPartitions):
    """A `Scheme`: `AssignedPartitions` by table."""

    consistency = Consistency.EVENTUAL
    ordering = Ordering.NONE

    def __init__(self, *, worker_queue_max: int = WORKER_QUEUE_MAX) -> None:
        """Limits one worker's queue to `worker_queue_max` jobs."""
        super().__init__(worker_queue_max, _divide)


def _divide(entry: RelayEntry) -> Sequence[Share] | None:
    tables = entry.header.tables
    if tables is None:
        return None
    if len(tables) < 2:
        return (Share(tables),)
    return [Share((table,), Part(table=table)) for table in tables]
