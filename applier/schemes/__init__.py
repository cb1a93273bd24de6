"""Schemes: the rules by which transactions may be executed in parallel, one a file.

A scheme is a pure state machine. It reads transactions in the source's order, returns the jobs that
start on idle workers, and is informed of commits; it knows no threads, no clock and no target. A
worker is occupied from the start of its job to its commit.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from ..queue.job import Job
from ..queue.relay_group import RelayEntry


class Consistency(Enum):
    """The states that a reader of the replica may see, in the words of WL#4648."""

    ANY_TIME = "any-time"
    """Every visible state is one that the source was in."""
    MOST_OF_THE_TIME = "most-of-the-time"
    """Other states are visible for moments, while transactions that depend on nothing overtake."""
    EVENTUAL = "eventual"
    """States while transactions come in may never have been at the source; the last one has."""


class Ordering(Enum):
    """The order in which a scheme's jobs become visible."""

    SOURCE = "source"
    """All of them in the order of the source."""
    DOMAIN = "domain"
    """In the order of the source within each domain."""
    NONE = "none"
    """Each as soon as it is executed."""


def kept_or_not(preserve_commit_order: bool) -> tuple[Consistency, Ordering]:
    """Returns the consistency and the ordering of a scheme that can commit with, and without, the
    source's order.
    """
    if preserve_commit_order:
        return Consistency.ANY_TIME, Ordering.SOURCE
    return Consistency.MOST_OF_THE_TIME, Ordering.NONE


class Cause(Enum):
    """The reason for which the head of the queue is not handed over."""

    WORKER = "no idle worker"
    QUEUE = "the worker's queue is full"
    CLOCK = "last_committed is not committed"
    COMMIT_PARENT = "another commit parent is executing"
    COMMIT_ID = "another group commit is executing"
    PARTITION = "a database or table is with another worker"
    TRANSACTION = "the transaction before it is executing"
    CONFLICT = "a row of it is being written"
    ALL_PARTITIONS = "it updates more databases than are tracked"
    ALONE = "it runs alone: a view change, a rotation, or no stamps"
    NO_WRITE_SET = "it runs alone: its rows are not known"

    # A simulation counts by cause all the time: Enum's own is a Python function.
    __hash__ = object.__hash__

    @property
    def is_sequential(self) -> bool:
        """True if parallel execution stops for it until all before it is committed."""
        return self in (Cause.CONFLICT, Cause.ALL_PARTITIONS, Cause.ALONE, Cause.NO_WRITE_SET)


class Hold(NamedTuple):
    """The cause for which the queue's next transaction waits; `detail` names, for example, a
    sequence number, or a database and its worker.
    """

    cause: Cause
    detail: str = ""


class Scheme(Protocol):
    """One rule of parallel execution."""

    consistency: Consistency
    ordering: Ordering
    hold: Hold | None
    """After `take`: why it did not take more; None if nothing is left to take."""

    def take(self, pending: deque[RelayEntry], idle: Sequence[int], room: int) -> list[Job[Any]]:
        """Returns the jobs that start now, each for another one of the `idle` workers.

        Removes transactions from the head of `pending`, `room` at most: those it returns, and those
        it keeps to hand them over later. A transaction that has no GTID (a view change, a rotation)
        starts when everything before it is committed, and nothing starts beside it. Called after
        each change: something appended, executed, committed, a worker idle again.

        Cost: O(taken + returned), so that being asked often costs nothing.
        """
        ...

    def committed(self, job: Job[Any]) -> None:
        """Frees the worker of a job that `take` returned, as the job is visible."""
        ...

    def check_invariants(self) -> None:
        """Asserts the scheme's invariants between two calls."""
        ...
