"""The certifier alone: how fast, how large, how long the longest pause, on one thread.

The rule it keeps: it measures the certifier as a member runs it: write sets of fresh integers as
they come off the wire, snapshots some versions back, a stable set now and then, so that as many
items are purged as are recorded. Its bound is one core and the memory behind it: each item is
looked up, recorded and purged once, at random places of a map that no cache holds.
"""

import gc
import random
import statistics
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from time import perf_counter_ns, thread_time_ns

import psutil

from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.plain_runs import PlainTransactions, certify_plain
from groupcert.certifier.records import GarbageCollection
from groupcert.members.host.worker_processes import WorkerProcesses
from tests.bench.harness import Document, Load, Run, machine

RESIDENT_ITEMS = (10_000, 1_000_000, 5_000_000)
TARGETS = {
    "transactions_per_second_min": 300_000,
    "bytes_per_item_max": 120,
    "pause_ms_max": 1,
    "at_resident_items": 1_000_000,
}
GROUP_SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
MEMBERS = ("m1", "m2", "m3")
BATCH_TRANSACTIONS = 64
ITEM_BYTES = 8


WORKLOAD = {
    "items_per_transaction": 4,
    "snapshot_lag_versions": 300,
    "stable_period_transactions": 1024,
    "rounds": 7,
    "round_transactions": 131_072,
    "seed": 1,
}
"""All items are distinct, so every transaction is certified; messages of 64 come from three members
in turn, and `m1` is the observer. The stable set advances after each `stable_period_transactions`.
The rounds are measured after one that only warms up.
"""
ITEMS, PERIOD = WORKLOAD["items_per_transaction"], WORKLOAD["stable_period_transactions"]


def certify(run: Run, resident_items: tuple[int, ...] = RESIDENT_ITEMS) -> Document:
    """Certifies on one thread, with small and large certification info.

    Args:
        resident_items: About so many are in it; each size is measured in a new process.
    """
    loads = [Load(f"{items:,} resident items", partial(_apart, items)) for items in resident_items]
    results = run.measure(loads, nullcontext())
    return {
        "benchmark": "certify",
        "machine": machine(),
        "groupcert": version("groupcert"),
        "targets": TARGETS,
        "workload": WORKLOAD,
        "sizes": [size for (size,) in results.values()],
    }


def _apart(resident_items: int, _: None) -> Document:
    with WorkerProcesses(1) as process:
        return process.submit(measure_size, resident_items).result()


def measure_size(resident_items: int) -> Document:
    """Measures one size of the certification info, in this process.

    `bytes_per_item` is the growth of the process while it was filled, after a collection of
    Python's garbage, so that it holds what the allocators keep (a small one finds room in what they
    had kept before); `bytes_per_item_steady` is the same
    after all rounds, when hash tables have grown for the entries that came and went. The pause is
    the longest single call, in a round of its own, because reading the clock around each call costs
    a share of it: wall time, and the thread's own time, without what the machine gave to others.
    """
    messages = _Messages(resident_items)
    bytes_before = _resident_bytes()
    messages.fill()
    filled = (_resident_bytes() - bytes_before) / len(messages.certifier.info)
    messages.round_seconds()
    seconds = [messages.round_seconds() for _ in range(WORKLOAD["rounds"])]
    rates = sorted(round(WORKLOAD["round_transactions"] / taken) for taken in seconds)
    steady = (_resident_bytes() - bytes_before) / len(messages.certifier.info)
    wall_ms, thread_ms = messages.longest_pauses_ms()
    return {
        "resident_items": resident_items,
        "transactions_per_second": round(statistics.median(rates)),
        "transactions_per_second_rounds": rates,
        "bytes_per_item": round(filled, 1),
        "bytes_per_item_steady": round(steady, 1),
        "pause_ms_worst": round(wall_ms, 3),
        "pause_thread_ms_worst": round(thread_ms, 3),
        "items_purged": messages.certifier.purged_total,
    }


class _Messages:
    """A certifier, and the messages that it reads: each has plain transactions of one member."""

    def __init__(self, resident_items: int) -> None:
        options = CertifierOptions(group_source=GROUP_SOURCE, gtid_assignment_block_size=1_000_000)
        self.certifier = Certifier(options)
        self._random = random.Random(WORKLOAD["seed"])
        self._resident_transactions = resident_items // ITEMS
        self._position = 0

    def fill(self) -> None:
        """Certifies without collections until the certification info has its size."""
        while self.certifier.window.newest_version < self._resident_transactions:
            deque(self._steps(self._batch(), None), maxlen=0)

    def round_seconds(self) -> float:
        """Certifies one round; the time that the certifier took, without making the records."""
        taken_ns = 0
        for steps in self._round():
            started_ns = perf_counter_ns()
            deque(steps, maxlen=0)
            taken_ns += perf_counter_ns() - started_ns
        return taken_ns / 1e9

    def longest_pauses_ms(self) -> tuple[float, float]:
        """Returns the longest single step of one round, in wall time and in thread time."""
        wall_ns = thread_ns = 0
        for steps in self._round():
            is_over = False
            while not is_over:
                thread_started_ns, started_ns = thread_time_ns(), perf_counter_ns()
                is_over = next(steps, self) is self
                wall_ns = max(wall_ns, perf_counter_ns() - started_ns)
                thread_ns = max(thread_ns, thread_time_ns() - thread_started_ns)
        return wall_ns / 1e6, thread_ns / 1e6

    def _round(self) -> Iterator[Iterator[None]]:
        """Yields the steps of a round's messages, with a stable set where one is due."""
        for done in range(0, WORKLOAD["round_transactions"], BATCH_TRANSACTIONS):
            stable_version = self.certifier.window.newest_version - self._resident_transactions
            collection = GarbageCollection(self._position, stable_version)
            yield self._steps(self._batch(), collection if done % PERIOD == 0 else None)

    def _steps(
        self, batch: PlainTransactions, collection: GarbageCollection | None
    ) -> Iterator[None]:
        """Certifies a message, then collects."""
        expected_version = self.certifier.window.newest_version + BATCH_TRANSACTIONS
        yield from certify_plain(self.certifier, batch)
        assert self.certifier.window.newest_version == expected_version, "not all were certified"
        if collection:
            yield
            self.certifier.deliver(collection)

    def _batch(self) -> PlainTransactions:
        """Returns transactions as they are decoded: every integer is a new object."""
        items = array("Q", self._random.randbytes(ITEM_BYTES * ITEMS * BATCH_TRANSACTIONS))
        cut = items.tolist()
        write_sets = [cut[begin : begin + ITEMS] for begin in range(0, len(cut), ITEMS)]
        newest_version = self.certifier.window.newest_version
        origin = MEMBERS[self._position // BATCH_TRANSACTIONS % len(MEMBERS)]
        snapshot = max(newest_version - WORKLOAD["snapshot_lag_versions"], 0)
        position, self._position = self._position, self._position + BATCH_TRANSACTIONS
        snapshots = [snapshot] * BATCH_TRANSACTIONS
        return PlainTransactions(position, origin, origin == MEMBERS[0], snapshots, write_sets)


def _resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
