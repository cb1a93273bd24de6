"""Who may commit now: transactions commit in the total order, whoever was executed first.

The rule it keeps: what is taken is a prefix of what was appended and not taken yet; the whole
prefix that is ready is one group commit.

Source: WL#8440, "Session commit order" (`slave_preserve_commit_order`).
"""

from collections import deque
from itertools import pairwise
from typing import Generic

from applier.job import Execution, Job


class CommitOrder(Generic[Execution]):
    """The jobs that are not committed, in the total order."""

    __slots__ = ("_jobs", "_last_position")

    def __init__(self) -> None:
        self._jobs: deque[Job[Execution]] = deque()
        self._last_position = -1

    def append(self, job: Job[Execution]) -> None:
        """Adds the job that follows all others in the total order."""
        assert job.entries[0].position > self._last_position, "appended out of order"
        self._jobs.append(job)
        self._last_position = job.entries[-1].position

    @property
    def is_ready(self) -> bool:
        """Whether `take` would return a job."""
        return bool(self._jobs) and self._jobs[0].is_ready

    def take(self, transactions_max: int) -> list[Job[Execution]]:
        """Removes and returns the ready prefix: one job at least if it is ready, then as many as
        fit the limit.
        """
        jobs = self._jobs
        taken: list[Job[Execution]] = []
        transactions = 0
        while jobs and jobs[0].is_ready:
            transactions += len(jobs[0].entries)
            if taken and transactions > transactions_max:
                break
            taken.append(jobs.popleft())
        return taken

    @property
    def jobs(self) -> tuple[Job[Execution], ...]:
        """All jobs that were not taken yet."""
        return tuple(self._jobs)

    def check_invariants(self) -> None:
        """Positions ascend within jobs and from one to the next."""
        positions = [entry.position for job in self._jobs for entry in job.entries]
        assert all(earlier < later for earlier, later in pairwise(positions))
        assert not positions or positions[-1] == self._last_position
