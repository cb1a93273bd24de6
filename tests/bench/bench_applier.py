"""How fast a member applies: from the relay queue's append to visible rows, in one process.

The stream: single-row transactions of 100-byte values over 100,000 keys, stamped by WL#8440's rule,
in appends of 64 for throughput and of one for latency. Each append does what a member does: the
relay queue's batch is written, then the applier takes the entries. A flusher makes commits durable
meanwhile. The bound is the line with 0 workers, one thread that does all of it: threads share one
interpreter, so that on this target they can only cost. Latency is from before the relay queue's
encoding until the rows are visible.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from groupcert.applier.engine.applier import Applier, ApplierOptions
from groupcert.applier.queue.checkpoint import DurabilityFlusher
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.applier.schemes.logical_clock import LogicalClock
from groupcert.applier.targets.rocksdb import RocksDbTarget
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.position import position_of
from groupcert.certifier.storage.store import Store, StoreIdentity

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
JOB_TRANSACTIONS_MAX = 64
"""As many as at a member."""
KEYS = 100_000
VALUE = bytes(100)
KEY_BYTES = 8
BACKLOG_ENTRIES_MAX = 4_096
SWITCH_INTERVAL_SECONDS = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One configuration's numbers."""

    workers: int
    append_transactions: int
    transactions_per_second: float
    latency_p50_us: float
    latency_p99_us: float
    parallelism_mean: float


def decode(payload: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The one row of a payload."""
    return [payload[:KEY_BYTES]], [payload[KEY_BYTES:]], []


def stream(transactions: int, seed: int, local_share: float = 0.0) -> list[RelayEntry]:
    """Stamped single-row transactions."""
    chance = random.Random(seed)
    writers: dict[int, int] = {}
    entries = []
    sequence_number = 2
    for version in range(1, transactions + 1):
        key = chance.randrange(KEYS)
        local = chance.random() < local_share
        stamps = (0, 0) if local else (writers.get(key, 1), sequence_number)
        writers[key] = stamps[1]
        sequence_number += not local
        payload = key.to_bytes(KEY_BYTES, "big") + VALUE
        position = position_of(version, 0)
        entries.append(RelayEntry(position, version, Gtid(GROUP, version), *stamps, local, payload))
    return entries


def measure(
    folder: Path, entries: Sequence[RelayEntry], workers: int, append_transactions: int
) -> Result:
    """Applies the entries, the next append when the one before is visible (appends of one) or
    when the backlog allows.
    """
    visible = 0
    visible_at = 0.0

    def on_committed(version: int, _: int) -> None:
        nonlocal visible, visible_at
        visible_at = perf_counter()
        visible = version
        flusher.request(version)

    def on_error(error: Exception) -> None:
        raise error

    one_by_one = append_transactions == 1
    latencies = []
    with Store(folder, StoreIdentity(group="bench", member="m1")) as store:
        queue = RelayQueue(store)
        flusher = DurabilityFlusher(store, lambda _: None, on_error)
        target = RocksDbTarget(store, decode, queue)
        scheme = LogicalClock(job_transactions_max=JOB_TRANSACTIONS_MAX)
        options = ApplierOptions(workers_hold_jobs=False)
        applier = Applier(target, scheme, workers, on_committed, on_error, options)
        started = perf_counter()
        for start in range(0, len(entries), append_transactions):
            group = entries[start : start + append_transactions]
            appended_at = perf_counter()
            batch = store.batch()
            queue.append(batch, group)
            store.write(batch)
            queue.written()
            applier.append(group)
            if one_by_one:
                applier.drain(10)
                latencies.append((visible_at - appended_at) * 1e6)
            elif group[-1].version - visible > BACKLOG_ENTRIES_MAX:
                applier.drain(10)
        applier.drain(60)
        seconds = perf_counter() - started
        assert visible == len(entries)
        parallelism = applier.status().parallelism_mean
        applier.stop(10)
        flusher.stop(10)
    return Result(
        workers=workers,
        append_transactions=append_transactions,
        transactions_per_second=round(len(entries) / seconds),
        latency_p50_us=round(statistics.median(latencies), 1) if latencies else 0.0,
        latency_p99_us=round(statistics.quantiles(latencies, n=100)[98], 1) if latencies else 0.0,
        parallelism_mean=round(parallelism, 2),
    )


def run(
    transactions: int = 100_000, workers: Sequence[int] = (0, 1, 4), seed: int = 1
) -> list[Result]:
    """Measures each number of workers with appends of 64, and of one for a tenth of the
    transactions.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    results = []
    for count in workers:
        for append_transactions, total in ((64, transactions), (1, transactions // 10)):
            entries = stream(total, seed)
            with tempfile.TemporaryDirectory() as folder:
                results.append(measure(Path(folder), entries, count, append_transactions))
    return results


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transactions", type=int, default=100_000)
    parser.add_argument("--workers", default="0,1,4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON document, no table")
    options = parser.parse_args()
    workers = [int(count) for count in options.workers.split(",")]
    results = [asdict(result) for result in run(options.transactions, workers, options.seed)]
    machine = {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    if options.json:
        sys.stdout.write(json.dumps({"seed": options.seed, **machine, "results": results}) + "\n")
        return
    sys.stdout.write("  ".join(f"{name:>23}" for name in results[0]) + "\n")
    for result in results:
        sys.stdout.write("  ".join(f"{value:>23}" for value in result.values()) + "\n")


if __name__ == "__main__":
    main()
