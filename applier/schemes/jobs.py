"""Jobs: any idle worker takes the next job of one list, under one of five conflict controls.

Jobs start as the control decides. A transaction without GTID (under barrier, graph and merge also
one whose rows are not known) starts when everything before it is committed, and nothing starts
beside it.

| conflicts | starts | visible | consistency |
| --- | --- | --- | --- |
| `ignore` (C0) | the next one | as executed, the newest of a row stays | eventual |
| `ordered` (C1) | the next one | in the source's order | any-time |
| `barrier` (C2) | the next one, serial from a conflict on | in the source's order | any-time |
| `graph` (C3) | the oldest that waits for none | in the source's order | any-time |
| `merge` (C4) | the same, several transactions as one job | in the source's order | any-time |

Without `preserve_commit_order` the last three commit as executed: for moments some
transactions are visible ahead of others that they do not conflict with.

Source: WL#4648, P1. Differs: J, the list of jobs, is the queue of pending transactions itself,
which the relay queue bounds; only what `graph` and `merge` keep of it is bounded by k * n.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...certifier.errors import InvalidSetting
from ..queue.job import Job
from ..queue.relay_group import RelayEntry
from . import Cause, Consistency, Hold, Ordering, kept_or_not
from .conflict_barrier import ConflictBarrier
from .conflict_control import ConflictControl, JobList, NoControl
from .conflict_graph import ConflictGraph

_NO_WORKER = Hold(Cause.WORKER)
_NO_ROOM = Hold(Cause.QUEUE)


class Conflicts(Enum):
    """The treatment of transactions that write the same row."""

    IGNORE = "ignore"
    ORDERED = "ordered"
    BARRIER = "barrier"
    GRAPH = "graph"
    MERGE = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOptions:
    """Settings of the scheme `jobs`.

    `conflicts`: the control. `preserve_commit_order`: off, `barrier`, `graph` and `merge` commit as
    executed; `ordered` requires it, `ignore` never has it. `conflict_free_min`: jobs in a row that
    must be free of conflicts before `barrier` is parallel again; the seed's minimum.
    `jobs_per_worker_max`: jobs that `graph` and `merge` keep for each worker while they wait for
    others; the seed's k. `merge_transactions_max`, `merge_bytes_max`: limits of a merged job, the
    second one in bytes of payload; a transaction beyond that is a job of its own.
    """

    conflicts: Conflicts = Conflicts.GRAPH
    preserve_commit_order: bool = True
    conflict_free_min: int = 2
    jobs_per_worker_max: int = 2
    merge_transactions_max: int = 64
    merge_bytes_max: int = 1 << 20

    def __post_init__(self) -> None:
        minima = {"conflict_free_min": 2, "jobs_per_worker_max": 1}
        minima |= {"merge_transactions_max": 1, "merge_bytes_max": 1}
        for name, minimum in minima.items():
            if (value := getattr(self, name)) < minimum:
                raise InvalidSetting(name=name, value=value, expected=f"{minimum} or more")
        if self.conflicts is Conflicts.ORDERED and not self.preserve_commit_order:
            raise InvalidSetting(
                name="preserve_commit_order",
                value=False,
                expected="true with --conflicts ordered, or --conflicts ignore",
            )


class Jobs:
    """Implements P1: the list, its workers, and a control."""

    def __init__(self, options: JobsOptions) -> None:
        conflicts = options.conflicts
        self.hold: Hold | None = None
        # The version of a row is its lock, too: a delete of a row that an older transaction has not
        # inserted yet meets no other lock.
        self._keeps_newest = conflicts in (Conflicts.IGNORE, Conflicts.ORDERED)
        if conflicts is Conflicts.IGNORE:
            self.consistency, self.ordering = Consistency.EVENTUAL, Ordering.NONE
        else:
            self.consistency, self.ordering = kept_or_not(options.preserve_commit_order)
        self._control = _control(options)
        self._occupied = 0
        self._alone: Hold | None = None

    def take(self, pending: deque[RelayEntry], idle: Sequence[int], room: int) -> list[Job[Any]]:
        """Starts the jobs that the control returns, at most one for each idle worker."""
        jobs: list[Job[Any]] = []
        workers = self._occupied + len(idle)
        # A control may take more than it starts (it keeps jobs that wait), so the room is counted
        # by what has left the list.
        length_min = len(pending) - room
        for worker in idle:
            entries = self._next(JobList(pending, len(pending) - length_min, workers))
            if not entries:
                break
            self._occupied += 1
            jobs.append(Job(entries, worker, keeps_newest=self._keeps_newest))
        self.hold = self._why(pending, has_idle=len(jobs) < len(idle))
        return jobs

    def _next(self, jobs: JobList) -> Sequence[RelayEntry]:
        if self._alone:
            return ()
        entries = self._control.next(jobs)
        # The control hands out nothing, and nothing runs: the head is one that runs alone.
        if entries or self._occupied or not jobs.pending or not jobs.room:
            return entries
        entry = jobs.pending.popleft()
        cause = self._control.alone(entry)
        assert cause and not self._control.kept, "nothing runs, and something waits"
        self._alone = Hold(cause, f"position {entry.position} runs alone")
        return (entry,)

    def _why(self, pending: deque[RelayEntry], *, has_idle: bool) -> Hold | None:
        if not pending and not self._control.kept:
            return None
        if self._alone:
            return self._alone
        if not has_idle:
            return _NO_WORKER
        if pending and (cause := self._control.alone(pending[0])):
            return Hold(cause, f"position {pending[0].position} waits for all before it")
        return self._control.hold() or _NO_ROOM

    def committed(self, job: Job[Any]) -> None:
        """Frees the job's worker; transactions that waited for it may start."""
        self._occupied -= 1
        if self._alone:
            self._alone = None
        else:
            self._control.committed(job.entries)

    def check_invariants(self) -> None:
        """Asserts that nothing runs or is kept beside a job that runs alone; checks the control."""
        assert self._occupied >= 0
        if self._alone:
            assert self._occupied == 1
            assert not self._control.kept
        self._control.check_invariants()


def _control(options: JobsOptions) -> ConflictControl:
    match options.conflicts:
        case Conflicts.IGNORE | Conflicts.ORDERED:
            return NoControl()
        case Conflicts.BARRIER:
            return ConflictBarrier(options.conflict_free_min)
    merges = options.conflicts is Conflicts.MERGE
    return ConflictGraph(
        jobs_per_worker_max=options.jobs_per_worker_max,
        merge_transactions_max=options.merge_transactions_max if merges else 1,
        merge_bytes_max=options.merge_bytes_max,
    )
