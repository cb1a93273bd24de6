"""The commit order: whatever becomes ready when, each lane is taken in its order.

A naive model knows all transactions from the start: who may be taken next, and the low-water mark,
are searched for in the whole list every time.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.engine.commit_order import CommitOrder
from groupcert.applier.queue.job import Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.row_parts import Part
from groupcert.applier.schemes import Ordering
from tests.applier.scheme_driver import entry


class Shape(NamedTuple):
    """A job of several transactions of a domain, or one transaction in several parts."""

    domain: int
    transactions: int
    parts: int


shapes = st.builds(Shape, st.integers(0, 2), st.integers(1, 3), st.just(1)) | st.builds(
    Shape, st.integers(0, 2), st.just(1), st.integers(2, 3)
)


def jobs_of(shapes: Sequence[Shape]) -> list[list[Job[None]]]:
    """The jobs of each shape, over transactions that follow each other."""
    result, position = [], 0
    for domain, transactions, parts in shapes:
        numbers = range(position + 1, position + 1 + transactions)
        entries = [entry(number, domain_id=domain) for number in numbers]
        position += transactions
        slots = [Part(slot=slot, slots=parts) for slot in range(parts)]
        result.append([Job[None](entries, part=part, parts=parts) for part in slots])
    return result


def appended(
    jobs: Sequence[Sequence[Job[None]]], ordering: Ordering = Ordering.SOURCE
) -> CommitOrder[None]:
    order: CommitOrder[None] = CommitOrder(ordering)
    for each in jobs:
        order.append(each[0].entries)
    return order


class Model:
    """All jobs, and those that are ready, taken, visible."""

    def __init__(self, jobs: Sequence[Sequence[Job[None]]], ordering: Ordering) -> None:
        self.jobs = jobs
        self.ordering = ordering
        self.ready: list[Job[None]] = []
        self.groups: list[list[Job[None]]] = []
        self.visible: set[Job[None]] = set()

    def lane(self, job: Job[None]) -> int:
        by_domain = self.ordering is Ordering.DOMAIN
        return job.entries[0].header.domain_id if by_domain else 0

    def first_in_lanes(self) -> list[list[Job[None]]]:
        """The oldest of each lane that is neither taken nor visible, with all of its parts."""
        taken = {job for group in self.groups for job in group} | self.visible
        first: dict[int, list[Job[None]]] = {}
        for jobs in self.jobs:
            if jobs[0] not in taken:
                first.setdefault(self.lane(jobs[0]), list(jobs))
        return list(first.values())

    def takeable(self) -> bool:
        if self.ordering is Ordering.NONE:
            return bool(self.ready)
        committing = {self.lane(group[0]) for group in self.groups}
        ready = set(self.ready)
        return any(
            self.lane(jobs[0]) not in committing and ready.issuperset(jobs)
            for jobs in self.first_in_lanes()
        )

    def check_taken(self, group: Sequence[Job[None]], transactions_max: int) -> None:
        """What was taken is the whole ready prefix of a lane, up to the limit."""
        assert bool(group) == self.takeable()
        if not group:
            return
        if self.ordering is Ordering.NONE:
            assert len(group) == 1
            assert group[0] in self.ready
            self.ready.remove(group[0])
            self.groups.append(list(group))
            return
        left, entries = list(group), 0
        while left:
            (jobs,) = (jobs for jobs in self.first_in_lanes() if jobs[0] in left)
            assert left[: len(jobs)] == sorted(jobs, key=self.ready.index)
            entries += len(jobs[0].entries)
            assert entries <= transactions_max or left == group
            left = left[len(jobs) :]
            self.groups.append(jobs)
            for job in jobs:
                self.ready.remove(job)
        lane = self.lane(group[0])
        after = next((jobs for jobs in self.first_in_lanes() if self.lane(jobs[0]) == lane), None)
        if after and set(self.ready).issuperset(after):
            assert entries + len(after[0].entries) > transactions_max
        self.groups = [jobs for jobs in self.groups if jobs[0] not in group] + [list(group)]

    def commit(self, group: list[Job[None]]) -> list[RelayEntry]:
        """Makes a group visible; returns the entries of which nothing is left."""
        self.groups.remove(group)
        self.visible.update(group)
        finished = [jobs for jobs in self.jobs if self.visible.issuperset(jobs)]
        return [
            one for jobs in finished if not {*jobs}.isdisjoint(group) for one in jobs[0].entries
        ]

    def retract(self, job: Job[None]) -> set[Job[None]]:
        """Takes back what is ready and waits for the turn of a job that is at work."""
        if self.ordering is Ordering.NONE:
            return set()
        place = job.entries[0].position
        younger = {
            one
            for one in self.ready
            if self.lane(one) == self.lane(job) and one.entries[0].position > place
        }
        self.ready = [one for one in self.ready if one not in younger]
        return younger

    def low_water_mark(self) -> RelayEntry | None:
        mark = None
        for jobs in self.jobs:
            if not self.visible.issuperset(jobs):
                break
            mark = jobs[0].entries[-1]
        return mark


@given(
    st.lists(shapes, max_size=8),
    st.sampled_from(Ordering),
    st.integers(1, 6),
    st.randoms(use_true_random=True),
)
def test_taken_and_low_water_mark_are_those_of_a_naive_model(
    shapes: list[Shape], ordering: Ordering, transactions_max: int, chance: random.Random
) -> None:
    jobs = jobs_of(shapes)
    order = appended(jobs, ordering)
    model = Model(jobs, ordering)
    executing = [job for each in jobs for job in each]
    while executing or model.ready or model.groups:
        action = chance.choice(("execute", "execute", "take", "commit", "retract"))
        if action == "execute" and executing:
            job = executing.pop(chance.randrange(len(executing)))
            order.executed(job)
            model.ready.append(job)
        elif action == "take":
            model.check_taken(order.take(transactions_max), transactions_max)
        elif action == "retract" and executing:
            retracted = order.retract(job := chance.choice(executing))
            assert len(retracted) == len(set(retracted))
            assert set(retracted) == model.retract(job)
            executing += retracted
        elif action == "commit" and model.groups:
            group = chance.choice(model.groups)
            order.visible(model.commit(group))
            order.ended(group[0])
        order.check_invariants()
        assert order.low_water_mark == model.low_water_mark()
        assert set(order.ready_jobs) == set(model.ready)
        committing = {model.lane(group[0]) for group in model.groups}
        nexts = [jobs[0] for jobs in model.first_in_lanes()]
        assert all(
            order.is_next(one[0])
            == (
                ordering is Ordering.NONE
                or (one[0] in nexts and model.lane(one[0]) not in committing)
            )
            for one in jobs
            if one[0] in executing
        )
    assert order.take(transactions_max) == []
