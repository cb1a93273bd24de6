"""The group commit scheme: transactions that the source committed as one group run in parallel;
domains are independent of each other.

Of a domain one transaction executes, or several with the same commit id; they become visible in the
source's order. A transaction without GTID waits for all domains, and they wait for it.

Source: MDEV-4506.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from ..queue.job import Job
from ..queue.relay_group import RelayEntry
from . import Cause, Consistency, Hold, Ordering


class _Lane:
    """A domain: its waiting transactions, oldest first; its executing ones and their commit id."""

    __slots__ = ("commit_id", "executing", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[RelayEntry] = deque()
        self.executing = 0
        self.commit_id = 0

    @property
    def may_start(self) -> bool:
        """True if the first waiting transaction may start; it stays so until it does."""
        commit_id = self.waiting[0].header.commit_id
        return not self.executing or (commit_id != 0 and commit_id == self.commit_id)


class GroupCommit:
    """Keeps a lane for each domain with uncommitted transactions, over one pool of workers.

    There is no deadlock: a domain's oldest transaction starts first, so that the oldest executing
    one is always the next to become visible. A domain that waits holds no other up, while there is
    room to keep its waiting transactions.
    """

    consistency = Consistency.ANY_TIME
    """Within each domain."""
    ordering = Ordering.DOMAIN

    def __init__(self) -> None:
        self.hold: Hold | None = None
        self._lanes: dict[int, _Lane] = {}
        self._startable: list[tuple[int, int]] = []
        self._held: dict[int, None] = {}
        self._executes_alone = False

    def take(self, pending: deque[RelayEntry], idle: Sequence[int], room: int) -> list[Job[Any]]:
        """Moves transactions into their lanes, and starts the oldest of those that may start.

        Cost: O(taken + returned), times the logarithm of the number of domains.
        """
        jobs: list[Job[Any]] = []
        if not self._executes_alone:
            room = self._fill(pending, room)
            while self._startable and len(jobs) < len(idle):
                jobs.append(self._start(idle[len(jobs)]))
            # Every domain is empty: whatever was before the transaction is committed.
            if pending and not (self._lanes or pending[0].gtid) and idle and room > 0:
                self._executes_alone = True
                jobs.append(Job([pending.popleft()], idle[0]))
        self.hold = self._hold(pending)
        return jobs

    def committed(self, job: Job[Any]) -> None:
        """Counts one executing transaction of the domain fewer; its next group may start then."""
        entry = job.entries[0]
        if entry.gtid is None:
            self._executes_alone = False
            return
        domain = entry.header.domain_id
        lane = self._lanes[domain]
        lane.executing -= 1
        # Only one that was held changes: a lane that may start has its place in the heap already.
        if domain in self._held and lane.may_start:
            del self._held[domain]
            heappush(self._startable, (lane.waiting[0].position, domain))
        elif not lane.executing and not lane.waiting:
            del self._lanes[domain]

    def _fill(self, pending: deque[RelayEntry], room: int) -> int:
        """Moves the head of `pending` into lanes, up to one without GTID; returns the room left."""
        while pending and pending[0].gtid and room > 0:
            entry = pending.popleft()
            room -= 1
            domain = entry.header.domain_id
            lane = self._lanes.setdefault(domain, _Lane())
            lane.waiting.append(entry)
            if len(lane.waiting) == 1:
                self._place(domain, lane)
        return room

    def _start(self, worker: int) -> Job[Any]:
        """Starts the oldest transaction that may start."""
        _, domain = heappop(self._startable)
        lane = self._lanes[domain]
        entry = lane.waiting.popleft()
        lane.executing += 1
        lane.commit_id = entry.header.commit_id
        if lane.waiting:
            self._place(domain, lane)
        return Job([entry], worker)

    def _place(self, domain: int, lane: _Lane) -> None:
        """Notes whether the first waiting transaction of a lane may start."""
        if lane.may_start:
            heappush(self._startable, (lane.waiting[0].position, domain))
        else:
            self._held[domain] = None

    def _hold(self, pending: deque[RelayEntry]) -> Hold | None:
        """Returns the reason for which the next transaction waits: of domains, the first held."""
        if self._startable:
            return Hold(Cause.WORKER)
        if pending:
            if not pending[0].gtid:
                return Hold(Cause.ALONE)
            return Hold(Cause.TRANSACTION if self._executes_alone else Cause.QUEUE)
        for domain in self._held:
            detail = f"{self._lanes[domain].commit_id} of domain {domain}"
            return Hold(Cause.COMMIT_ID, detail)
        return None

    def check_invariants(self) -> None:
        """Asserts that each lane has a transaction, that lanes with waiting ones are either
        startable or held, and that nothing executes beside a transaction that runs alone.
        """
        waiting = {domain for domain, lane in self._lanes.items() if lane.waiting}
        startable = {domain for _, domain in self._startable}
        assert len(startable) == len(self._startable)
        assert startable | self._held.keys() == waiting
        assert not startable & self._held.keys()
        for domain, lane in self._lanes.items():
            assert lane.waiting or lane.executing
            assert lane.commit_id or lane.executing <= 1
            assert not lane.waiting or lane.may_start == (domain in startable)
        assert not (self._executes_alone and self._lanes)
