"""The database scheme: transactions of different databases run in parallel, one worker a database.

Transactions that update a common database are executed and committed in the source's order; others
in none, unless `preserve_commit_order` requires one. A transaction of several databases waits until
only one worker has any of them, and all are assigned to that worker; one of more than
`databases_max`, or of unknown ones, runs alone. Parallel execution resumes after both.

Source: WL#5569.
"""

from collections.abc import Sequence

from ...certifier.errors import InvalidSetting
from ..queue.relay_group import RelayEntry
from . import kept_or_not
from .assigned_partitions import (
    WORKER_QUEUE_MAX,
    AssignedPartitions,
    Share,
)

DATABASES_MAX = 16


class ByDatabase(AssignedPartitions):
    """A `Scheme`: `AssignedPartitions` by database."""

    def __init__(
        self,
        *,
        databases_max: int = DATABASES_MAX,
        worker_queue_max: int = WORKER_QUEUE_MAX,
        preserve_commit_order: bool = False,
    ) -> None:
        """Creates the scheme: a transaction of more than `databases_max` databases runs alone, and
        a worker's queue has at most `worker_queue_max` transactions.
        """
        if databases_max < 1:
            raise InvalidSetting(name="databases_max", value=databases_max, expected="1 or more")
        self.consistency, self.ordering = kept_or_not(preserve_commit_order)
        super().__init__(worker_queue_max, self._shares)
        self._databases_max = databases_max

    def _shares(self, entry: RelayEntry) -> Sequence[Share] | None:
        databases = entry.header.databases
        if databases is None or len(databases) > self._databases_max:
            return None
        return (Share(databases),)
