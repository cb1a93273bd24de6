"""Targets: what transactions are executed on, one a file."""

from typing import Protocol

from applier.checkpoint import Checkpoint
from applier.job import CommitGroup, Execution
from applier.relay_queue import RelayEntry


class Target(Protocol[Execution]):
    """Executes in parallel, commits in order."""

    def execute(self, entry: RelayEntry) -> Execution:
        """Makes one transaction ready to commit; nobody sees anything of it yet.

        Called by many threads at once, for transactions that do not depend on each other.
        """
        ...

    def commit(self, group: CommitGroup[Execution], checkpoint: Checkpoint) -> None:
        """Makes a group visible in its order, and the checkpoint and the removal of executed
        groups from the relay queue with it: all or nothing. Not durable yet.

        Called by one thread at a time. If it raises, nothing happened.
        """
        ...

    def checkpoint(self) -> Checkpoint | None:
        """What the target says was executed; None if nothing ever was."""
        ...
