"""Targets: the stores and servers on which transactions are executed, one a file."""

from collections.abc import Sequence
from typing import Protocol

from ..queue.job import CommitGroup, Execution, Job
from ..queue.relay_group import RelayEntry
from ..queue.target_progress import Checkpoint, TargetProgress


class Target(Protocol[Execution]):
    """Executes jobs in parallel, and commits the executed ones.

    A job is one transaction of the target: all of its entries (or, of its one entry, the rows of
    its part) and their GTIDs are executed together; if it is abandoned, none is.
    """

    def translate(self, entries: Sequence[RelayEntry]) -> None:
        """Makes ready what `execute` needs of entries that are a job later, and no server: on
        another thread, while an earlier job is executed. May do nothing.
        """
        ...

    def execute(self, job: Job[Execution]) -> Execution:
        """Executes a job so that it is ready to commit and not visible yet. If the target has
        sessions, the worker's session is occupied from here to `commit` or `abandon`.

        Called by many threads at once, by one at a time for a worker's number.

        Raises:
            TransientFailure: it may succeed when it is executed again; nothing of it is left.
        """
        ...

    def commit(self, group: CommitGroup[Execution], progress: TargetProgress) -> None:
        """Makes jobs visible in their order, durable if the target's commits are, and advances
        `progress`: before the commit if the checkpoint is written with the rows, else after it.

        The jobs into which one entry was divided become visible together or not at all, if they
        are in one group. Called by several threads at once, with groups that do not depend on each
        other, only where the commits have no order.
        """
        ...

    def abandon(self, job: Job[Execution]) -> None:
        """Undoes an execution that was not committed; the job may be executed again."""
        ...

    def checkpoint(self) -> Checkpoint | None:
        """Returns the checkpoint of the executed transactions; None if nothing was ever executed.
        Steps that a crash interrupted are completed or undone first.
        """
        ...

    def save(self, checkpoint: Checkpoint) -> None:
        """Writes the whole checkpoint, if commits only note their GTIDs; its `error` in any case,
        if the next process is to know of it. Called every `checkpoint_group` commits or
        `checkpoint_period_ms`, at a stop and with an error.
        """
        ...

    def close(self) -> None:
        """Closes the sessions; uncommitted changes are undone."""
        ...
