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
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is certified, and for how long.

    All items are distinct, so every transaction is certified; messages of 64 come from three
    members in turn, and `m1` is the observer. `stable_period_transactions`: how often the stable
    set advances. `rounds`: measured rounds of `round_transactions` each, after one that only
    warms up.
    """

    items_per_transaction: int = 4
    snapshot_lag_versions: int = 300
    stable_period_transactions: int = 1024
    rounds: int = 7
    round_transactions: int = 131_072
    seed: int = 1


def certify(run: Run, resident_items: tuple[int, ...] = RESIDENT_ITEMS) -> Document:
    """Certifies on one thread, with small and large certification info.

    resident-items: about so many are in it; each size is measured in a new process.
    """
    loads = [Load(f"{items:,} resident items", partial(_apart, items)) for items in resident_items]
    results = run.measure(loads, nullcontext())
    return {
        "benchmark": "certify",
        "machine": machine(),
        "groupcert": version("groupcert"),
        "targets": TARGETS,
        "workload": asdict(Workload()),
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
    workload = Workload()
    messages = _Messages(workload, resident_items)
    bytes_before = _resident_bytes()
    messages.fill()
    filled = (_resident_bytes() - bytes_before) / len(messages.certifier.info)
    messages.round_seconds()
    seconds = [messages.round_seconds() for _ in range(workload.rounds)]
    rates = sorted(round(workload.round_transactions / taken) for taken in seconds)
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

    def __init__(self, workload: Workload, resident_items: int) -> None:
        options = CertifierOptions(group_source=GROUP_SOURCE, gtid_assignment_block_size=1_000_000)
        self.certifier = Certifier(options)
        self._workload = workload
        self._random = random.Random(workload.seed)
        self._resident_transactions = resident_items // workload.items_per_transaction
        self._position = 0

    def fill(self) -> None:
        """Certifies without collections until the certification info has its size."""
        while self.certifier.window.newest_version < self._resident_transactions:
            self._certified(self._batch())

    def round_seconds(self) -> float:
        """Certifies one round; the time that the certifier took, without making the records."""
        taken_ns = 0
        for batch, collections in self._round():
            started_ns = perf_counter_ns()
            self._certified(batch)
            for collection in collections:
                self.certifier.deliver(collection)
            taken_ns += perf_counter_ns() - started_ns
        return taken_ns / 1e9

    def longest_pauses_ms(self) -> tuple[float, float]:
        """Returns the longest single step of one round, in wall time and in thread time."""
        wall_ns = thread_ns = 0
        for batch, collections in self._round():
            steps = chain(certify_plain(self.certifier, batch), self._collecting(collections))
            is_over = False
            while not is_over:
                thread_started_ns, started_ns = thread_time_ns(), perf_counter_ns()
                is_over = next(steps, self) is self
                wall_ns = max(wall_ns, perf_counter_ns() - started_ns)
                thread_ns = max(thread_ns, thread_time_ns() - thread_started_ns)
        return wall_ns / 1e6, thread_ns / 1e6

    def _collecting(self, collections: list[GarbageCollection]) -> Iterator[None]:
        for collection in collections:
            yield
            self.certifier.deliver(collection)

    def _certified(self, batch: PlainTransactions) -> None:
        before = self.certifier.window.newest_version
        deque(certify_plain(self.certifier, batch), maxlen=0)
        newest_version = self.certifier.window.newest_version
        assert newest_version == before + BATCH_TRANSACTIONS, "not all were certified"

    def _round(self) -> Iterator[tuple[PlainTransactions, list[GarbageCollection]]]:
        """Yields a round's transactions in batches, then a stable set where one is due."""
        workload = self._workload
        for done in range(0, workload.round_transactions, BATCH_TRANSACTIONS):
            stable_version = self.certifier.window.newest_version - self._resident_transactions
            is_due = done % workload.stable_period_transactions == 0
            collection = GarbageCollection(self._position, stable_version)
            yield self._batch(), [collection] * is_due

    def _batch(self) -> PlainTransactions:
        """Returns transactions as they are decoded: every integer is a new object."""
        count = self._workload.items_per_transaction
        items = array("Q", self._random.randbytes(ITEM_BYTES * count * BATCH_TRANSACTIONS))
        cut = items.tolist()
        write_sets = [cut[begin : begin + count] for begin in range(0, len(cut), count)]
        newest_version = self.certifier.window.newest_version
        origin = MEMBERS[self._position // BATCH_TRANSACTIONS % len(MEMBERS)]
        snapshot = max(newest_version - self._workload.snapshot_lag_versions, 0)
        position, self._position = self._position, self._position + BATCH_TRANSACTIONS
        snapshots = [snapshot] * BATCH_TRANSACTIONS
        return PlainTransactions(position, origin, origin == MEMBERS[0], snapshots, write_sets)


def _resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
