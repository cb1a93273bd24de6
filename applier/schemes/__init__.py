"""Schemes: the rules by which transactions may be executed in parallel, one a file."""

from collections import deque
from typing import Protocol

from applier.job import Execution, Job
from applier.relay_queue import RelayEntry


class Scheme(Protocol):
    """A pure state machine that says what may start.

    It is told of each job's start and commit, in any order that the commit order of its kind
    allows, and is asked after each of them."""

    def take(self, pending: deque[RelayEntry], transactions_max: int) -> list[RelayEntry]:
        """Removes from `pending` and returns, in order, transactions that may all start now.

        Cost: O(taken), so that being asked often costs nothing.
        """
        ...

    def started(self, job: Job[Execution]) -> None:
        """Transactions that were taken were handed over; jobs come in the total order."""
        ...

    def committed(self, job: Job[Execution]) -> None:
        """A started job is visible."""
        ...

    def check_invariants(self) -> None:
        """Asserts what holds between any two calls."""
        ...
