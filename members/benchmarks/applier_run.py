"""One run of `groupcert bench applier`: a stream, a scheme, a number of workers, a new target.

The rule it keeps: the clock runs from the first transaction that is handed over until the last one
is visible; it stands still while the target is made and read back.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import psutil

from groupcert.applier.engine.applier import Applier, ApplierOptions
from groupcert.applier.engine.coordinator import CoordinatorOptions
from groupcert.applier.engine.status import ApplierState
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes import Scheme
from groupcert.applier.schemes.catalogue import scheme
from groupcert.applier.schemes.jobs import Conflicts
from groupcert.members.benchmarks.applier_targets import BenchTarget, SlowTarget
from groupcert.members.benchmarks.source_stream import SourceOptions, longest_chain, source_stream
from groupcert.members.replica.follower import CHUNK_TRANSACTIONS, WAKE_SECONDS
from groupcert.members.replica.process import sql_logical_clock
from groupcert.members.wire.row_changes import encode_changes

SEED = 1
QUEUE_TRANSACTIONS_MAX = CoordinatorOptions().assigned_transactions_max
QUEUE_BYTES_MAX = 64 << 20
STOP_SECONDS_MAX = 60


MakeScheme = Callable[[], Scheme]
LINES: dict[str, MakeScheme] = {
    "logical-clock at-most-one": partial(scheme, "logical-clock", policy="at-most-one"),
    "logical-clock first-available": partial(scheme, "logical-clock", policy="first-available"),
    "logical-clock as on SQL servers": sql_logical_clock,
    **{name: partial(scheme, name) for name in ("commit-parent", "group-commit")},
    **{name: partial(scheme, name) for name in ("database", "table")},
    **{f"jobs {each.value}": partial(scheme, "jobs", conflicts=each.value) for each in Conflicts},
    "rows": partial(scheme, "rows"),
}
"""Schemes with their settings, by their names in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run showed.

    `is_correct`: the rows are those of serial execution. `client_cpu_us`, `server_cpu_us`:
    processor time in microseconds a transaction. `parallelism_mean`: workers that executed when a
    transaction was handed over. `bound_share`: of the slow target, the least time that the bound
    allows over the time it took.
    """

    transactions_per_second: float
    is_correct: bool
    commit_group_mean: float | None = None
    retries: int = 0
    client_cpu_us: float | None = None
    server_cpu_us: float | None = None
    parallelism_mean: float | None = None
    bound_share: float | None = None


def stream(options: SourceOptions) -> list[RelayEntry]:
    """Returns the stream as a replica receives it, each time the same."""
    return source_stream(
        options,
        random.Random(SEED).randrange,
        lambda row, value: encode_changes([row], [value]),
    )


def measure(
    target: BenchTarget,
    make_scheme: MakeScheme,
    workers: int,
    entries: Sequence[RelayEntry],
    expected: Mapping[bytes, bytes],
) -> Run:
    """Applies the entries to a new target.

    Raises:
        GroupcertError: one of them cannot be executed.
    """
    groups_max = CoordinatorOptions().group_transactions_max
    limits = CoordinatorOptions(
        group_transactions_max=groups_max if workers else target.alone_transactions_max
    )
    errors: list[Exception] = []
    with target.opened(workers) as opened:
        applier: Applier[Any] = Applier(
            opened,
            make_scheme(),
            workers,
            on_committed=lambda version, position: None,
            on_error=errors.append,
            options=ApplierOptions(coordinator=limits),
        )
        before = Clocks.read(target.server_cpu_seconds())
        try:
            _apply(applier, entries)
            ended = Clocks.read(target.server_cpu_seconds())
        finally:
            applier.stop(STOP_SECONDS_MAX)
        if errors:
            raise errors[0]
        status = applier.status()
        is_correct = target.rows(opened) == expected
    share = None
    if isinstance(opened, SlowTarget):
        took_seconds = ended.wall_seconds - before.wall_seconds
        share = round(_bound_seconds(opened, workers, entries) / took_seconds, 3)
    return ended.run(
        before,
        len(entries),
        is_correct=is_correct,
        commit_group_mean=round(status.committed_total / max(status.groups_total, 1), 2),
        retries=sum(worker.retried_total for worker in status.workers),
        parallelism_mean=round(status.parallelism_mean, 2),
        bound_share=share,
    )


class Clocks(NamedTuple):
    """Time, and the processor time of this process and of a server."""

    wall_seconds: float
    client_seconds: float
    server_seconds: float | None

    @classmethod
    def read(cls, server_seconds: float | None) -> Self:
        """Reads the clocks now; that of the server is read by who knows its processes."""
        client_seconds = sum(psutil.Process().cpu_times()[:2])
        return cls(time.perf_counter(), client_seconds, server_seconds)

    def run(self, before: Self, transactions: int, **others: Any) -> Run:
        """Returns a run of so many transactions, which has begun at `before` and ends now."""
        us = 1e6 / transactions
        server_us = None
        if self.server_seconds is not None and before.server_seconds is not None:
            server_us = round((self.server_seconds - before.server_seconds) * us, 1)
        return Run(
            transactions_per_second=round(
                transactions / (self.wall_seconds - before.wall_seconds), 1
            ),
            client_cpu_us=round((self.client_seconds - before.client_seconds) * us, 1),
            server_cpu_us=server_us,
            **others,
        )


def _apply(applier: Applier[Any], entries: Sequence[RelayEntry]) -> None:
    """Feeds the entries as a replica does, and waits until they are visible, or one failed."""
    for start in range(0, len(entries), CHUNK_TRANSACTIONS):
        while not applier.wait_for_room(QUEUE_TRANSACTIONS_MAX, QUEUE_BYTES_MAX, WAKE_SECONDS):
            if applier.status().state is not ApplierState.RUNNING:
                return
        applier.append(entries[start : start + CHUNK_TRANSACTIONS])
    applier.drain()


def _bound_seconds(target: SlowTarget, workers: int, entries: Sequence[RelayEntry]) -> float:
    """Returns max(work / workers, critical path); merged transactions are one commit, no chain."""
    commits = target.commits_total / max(workers, 1)
    chain = longest_chain(entries) if target.commits_total >= len(entries) else 0
    return max(commits, chain) * target.commit_seconds
