"""Drives any scheme: appends, takes, executes and commits, and checks what every scheme promises.

`run_randomly` does so at random until all is committed: transactions become visible by the
scheme's ordering, and a worker is occupied until its job is. What may start is the test's to say.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from hypothesis import strategies as st

from groupcert.applier.queue.job import Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.row_parts import database_of
from groupcert.applier.schemes import Ordering, Scheme
from groupcert.applier.source.header import SourceHeader
from groupcert.certifier.gtid import Gtid

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ROOM = 1_000


def entry(
    position: int,
    stamps: tuple[int, int] = (0, 0),
    *,
    alone: bool = False,
    local: bool = False,
    payload: bytes = b"",
    **header: Any,
) -> RelayEntry:
    """A transaction, or what has no GTID if it is `alone`; tables tell the databases."""
    if "tables" in header:
        header.setdefault("databases", tuple(sorted(set(map(database_of, header["tables"])))))
    gtid = None if alone else Gtid(SOURCE, position)
    return RelayEntry(position, position, gtid, *stamps, local, payload, SourceHeader(**header))


Rule = Callable[[Job[Any], Sequence[Job[Any]], Sequence[RelayEntry]], bool]
"""Whether a job may start: the job, those that are not committed, the entries that came before its
first and are not committed.
"""


def anything(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
    """The rule that allows all."""
    return True


class SchemeDriver:
    """One scheme, its queue and its workers, 1 and so on."""

    def __init__(
        self, scheme: Scheme, workers: int, *, room: int = ROOM, rule: Rule = anything
    ) -> None:
        self.scheme = scheme
        self.pending: deque[RelayEntry] = deque()
        self.idle = list(range(1, workers + 1))
        self.executing: dict[int, Job[Any]] = {}
        self.kept: list[RelayEntry] = []
        self.committed: list[RelayEntry] = []
        self.started: list[Job[Any]] = []
        self._room = room
        self._rule = rule
        self._uncommitted: dict[int, RelayEntry] = {}
        self._parts_started: dict[int, int] = {}
        self._parts_committed: dict[int, int] = {}

    def append(self, entries: Iterable[RelayEntry]) -> None:
        """Appends the next entries of the stream."""
        for one in entries:
            assert all(
                position < one.position for position in islice(reversed(self._uncommitted), 1)
            )
            self.pending.append(one)
            self._uncommitted[one.position] = one

    def take(self) -> list[Job[Any]]:
        """Takes until nothing more starts; returns what started."""
        started: list[Job[Any]] = []
        while jobs := self._take_once():
            started += jobs
        assert self.scheme.hold or not self.pending, "nothing says why it does not take more"
        assert self.pending or self.kept or not self.scheme.hold, "nothing is left to hold"
        return started

    def execute(self, job: Job[Any]) -> None:
        """The job's worker is done with it, up to the commit."""
        assert not job.is_ready
        job.is_ready = True

    def committable(self) -> list[list[Job[Any]]]:
        """What may become visible next: jobs, and what goes together with each."""
        groups = []
        for job in self.executing.values():
            together = self._together(job)
            if together[0] is job and all(one.is_ready for one in together) and self._is_next(job):
                groups.append(together)
        return groups

    def commit(self, jobs: Sequence[Job[Any]]) -> None:
        """Makes jobs visible; their workers are idle."""
        for job in jobs:
            assert self.executing.pop(job.worker) is job
            self.idle.append(job.worker)
            for one in job.entries:
                done = self._parts_committed.get(one.position, 0) + 1
                self._parts_committed[one.position] = done
                if done == job.parts:
                    self.committed.append(self._uncommitted.pop(one.position))
            self.scheme.committed(job)
            self.scheme.check_invariants()
        self.idle.sort()

    @property
    def is_done(self) -> bool:
        """Whether everything that was appended is committed."""
        return not self._uncommitted

    def _take_once(self) -> list[Job[Any]]:
        before = list(self.pending)
        room = self._room - (len(self._uncommitted) - len(before))
        jobs = self.scheme.take(self.pending, list(self.idle), room)
        taken = len(before) - len(self.pending)
        assert 0 <= taken <= room, f"took {taken}, there is room for {room}"
        assert list(self.pending) == before[taken:], "took others than the head"
        self.kept += before[:taken]
        for job in jobs:
            self._start(job)
        self.scheme.check_invariants()
        return jobs

    def _start(self, job: Job[Any]) -> None:
        assert job.worker in self.idle, f"worker {job.worker} is not idle"
        assert job.entries, "a job without transactions"
        assert (job.parts == 1) == (job.part is None)
        assert job.part is None or len(job.entries) == 1, "a part of several transactions"
        first = job.entries[0].position
        before = [one for position, one in self._uncommitted.items() if position < first]
        others = list(self.executing.values())
        for one in job.entries:
            assert one in self.kept, f"{one.position} was not taken, or started before"
            started = self._parts_started.get(one.position, 0) + 1
            self._parts_started[one.position] = started
            if started == job.parts:
                self.kept.remove(one)
            if one.gtid is None:
                assert [one] == list(job.entries)
                assert not [other for other in before if not other.local], "not alone"
        remote = [one for one in job.entries if not one.local]
        assert not remote or all(running.entries[0].gtid for running in others), "not alone"
        assert self._rule(job, others, before), f"{label(job)} must not start"
        self.idle.remove(job.worker)
        self.executing[job.worker] = job
        self.started.append(job)

    def _together(self, job: Job[Any]) -> list[Job[Any]]:
        """The jobs that become visible with this one; itself alone where there is no order."""
        if job.part is None or self.scheme.ordering is Ordering.NONE:
            return [job]
        position = job.entries[0].position
        return [one for one in self.executing.values() if one.entries[0].position == position]

    def _is_next(self, job: Job[Any]) -> bool:
        """Whether the scheme's ordering lets a job become visible, all of its parts with it."""
        if self.scheme.ordering is Ordering.NONE:
            return True
        waiting: Iterable[RelayEntry] = self._uncommitted.values()
        if self.scheme.ordering is Ordering.DOMAIN:
            domain = job.entries[0].header.domain_id
            waiting = (one for one in waiting if one.header.domain_id == domain)
        oldest = list(islice(waiting, len(job.entries)))
        return oldest == list(job.entries) and len(self._together(job)) == job.parts


def label(job: Job[Any]) -> str:
    """A job's name in a script: its positions, and its part."""
    positions = "+".join(str(one.position) for one in job.entries)
    return positions if job.part is None else f"{positions}[{job.part}]"


def run_randomly(
    driver: SchemeDriver, entries: Sequence[RelayEntry], chance: random.Random
) -> SchemeDriver:
    """Does one random thing at a time until everything is committed.

    Raises:
        AssertionError: the scheme broke a promise, or nothing can go on.
    """
    left = list(entries)

    def append() -> None:
        count = chance.randint(1, len(left))
        driver.append(left[:count])
        del left[:count]

    while left or not driver.is_done:
        at_work = [job for job in driver.executing.values() if not job.is_ready]
        groups = driver.committable()
        actions: list[Callable[[], object]] = []
        if left:
            actions.append(append)
        if at_work:
            actions.append(partial(driver.execute, chance.choice(at_work)))
        if groups:
            actions.append(partial(driver.commit, chance.choice(groups)))
        if actions:
            chance.choice(actions)()
        if not actions or chance.random() < 0.5:
            assert driver.take() or actions, "a deadlock: nothing executes, nothing starts"
    assert driver.take() == [] and len(driver.committed) == len(entries)
    return driver


def waves(scheme: Scheme, entries: Sequence[RelayEntry]) -> list[list[int]]:
    """What starts together, by position, where there is a worker for each and all that executes is
    committed before the scheme is asked again.
    """
    driver = SchemeDriver(scheme, len(entries))
    driver.append(entries)
    result = []
    while jobs := driver.take():
        result.append([one.position for job in jobs for one in job.entries])
        for job in jobs:
            driver.execute(job)
        while groups := driver.committable():
            driver.commit(groups[0])
    assert driver.is_done
    return result


class _Drawn(NamedTuple):
    """What hypothesis draws of a transaction; the stream makes a consistent entry of it."""

    alone: bool
    depends_back: int
    next_parent: bool
    next_group: bool
    grouped: bool
    domain: int
    tables: frozenset[str] | None
    items: frozenset[int]
    parents: frozenset[int]


_TABLES = ("a.t", "a.u", "b.t", "c.t")
_drawn = st.builds(
    _Drawn,
    alone=st.sampled_from([False] * 9 + [True]),
    depends_back=st.integers(1, 8),
    next_parent=st.booleans(),
    next_group=st.booleans(),
    grouped=st.sampled_from([True, True, True, False]),
    domain=st.sampled_from([0, 0, 1, 2]),
    tables=st.none() | st.frozensets(st.sampled_from(_TABLES), min_size=1, max_size=3),
    items=st.frozensets(st.integers(0, 7), max_size=3),
    parents=st.just(frozenset[int]()) | st.frozensets(st.integers(0, 7), max_size=2),
)


def _stream(steps: Sequence[_Drawn]) -> list[RelayEntry]:
    """Entries as a source writes them: numbers ascend, and start again after what is alone."""
    entries = []
    sequence_number = 0
    commit_parent = commit_id = 1
    for position, step in enumerate(steps, 1):
        commit_parent += step.next_parent
        commit_id += step.next_group
        if step.alone:
            sequence_number = 0
            entries.append(entry(position, alone=True))
            continue
        sequence_number += 1
        header: dict[str, Any] = {} if step.tables is None else {"tables": (*sorted(step.tables),)}
        entries.append(
            entry(
                position,
                (max(0, sequence_number - step.depends_back), sequence_number),
                commit_parent=commit_parent,
                commit_id=commit_id * step.grouped,
                domain_id=step.domain,
                items=(*sorted(step.items),),
                parent_items=(*sorted(step.parents - step.items),),
                committed_us=position,
                **header,
            )
        )
    return entries


streams = st.lists(_drawn, max_size=40).map(_stream)
"""Streams whose headers have all that a scheme may ask for."""
