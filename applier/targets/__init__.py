"""Targets: what transactions are executed on, one a file."""

from typing import Protocol

from applier.checkpoint import Checkpoint, Progress
from applier.job import CommitGroup, Execution, Job


class Target(Protocol[Execution]):
    """Executes in parallel, and commits what was executed.

    A job is one transaction of the target: all of its entries (of its one entry the rows of its
    part), their GTIDs as executed, and nothing of them if it is abandoned.
    """

    def execute(self, job: Job[Execution]) -> Execution:
        """Makes a job ready to commit; nobody sees anything of it yet. Its worker's session, if the
        target has sessions, is occupied from here to `commit` or `abandon`.

        Called by many threads at once, by one at a time for a worker's number.

        Raises:
            TransientFailure: it may succeed when it is executed again; nothing of it is left.
        """
        ...

    def commit(self, group: CommitGroup[Execution], progress: Progress) -> None:
        """Makes jobs visible in their order, and durable if the target's commits are, and moves
        `progress`: before that, where the checkpoint is written with the rows, or after it.

        The jobs into which one entry was divided become visible together or not at all, if they
        are in one group. Called by several threads at once, with groups that do not depend on each
        other, only where the commits have no order.
        """
        ...

    def abandon(self, job: Job[Execution]) -> None:
        """Undoes an execution that was not committed; the job may be executed again."""
        ...

    def checkpoint(self) -> Checkpoint | None:
        """What the target says was executed; None if nothing ever was. What a crash left between
        two steps is settled first.
        """
        ...

    def save(self, checkpoint: Checkpoint) -> None:
        """Brings what `checkpoint` would return up to date in one piece, where commits only note
        what they did. Called every `checkpoint_group` commits or `checkpoint_period`, and at a
        stop.
        """
        ...

    def close(self) -> None:
        """Gives back sessions; what was not committed is undone."""
        ...
