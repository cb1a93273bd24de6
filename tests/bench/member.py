"""What a member's process spends by itself, without network and clients: on messages of the log, on
applying, on digesting rows for a comparison.

Stores are where temporary files are.
"""

import asyncio
import gc
import os
import platform
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

from groupcert.applier.engine.applier import Applier, ApplierOptions
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.applier.queue.target_progress import DurabilityFlusher
from groupcert.applier.schemes.logical_clock import LogicalClock
from groupcert.applier.targets.rocksdb import ROW_PREFIX, RocksDbTarget, RowsSnapshot
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.position import position_of
from groupcert.certifier.storage.store import Family, Store, StoreIdentity
from groupcert.certifier.write_set import store_key_item
from groupcert.members.core.log_records import (
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    ViewProposal,
)
from groupcert.members.demo.load import percentile
from groupcert.members.runtime.row_comparison import digest_in_steps
from groupcert.members.total_order.port import Delivery
from groupcert.members.wire.log_batches import encode_batch
from groupcert.members.wire.row_changes import encode_changes
from tests.bench.harness import Document, Load, Run, circumstances, scratch
from tests.members.runtime.test_runtime import WRITER, runtime_at

IDENTITY = StoreIdentity(group="bench", member="m1")
GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
VALUE_BYTES = 100
# Of `apply`.
JOB_TRANSACTIONS_MAX = 64
"""As many as at a member."""
APPLIED_KEYS = 100_000
KEY_BYTES = 8
BACKLOG_ENTRIES_MAX = 4_096
SWITCH_INTERVAL_SECONDS = 0.0005
# Of `member`.
MESSAGE_TRANSACTIONS = (2, 8, 64)
WARM_MESSAGES = 60
MESSAGES_AT_ONCE = 3
SNAPSHOT_LAG = 64
# Of `comparison`.
ROWS_OF_BYTES = {100: 2_000_000, 1_000: 300_000, 10_000: 30_000}
BATCH_ROWS = 1_000
DIGESTED = 3


def member(run: Run, transactions: int = 24_000) -> Document:
    """Has a member's event loop decode, certify, apply, log and store messages of the log.

    Microseconds of its thread a message and a transaction, for messages of 2, 8 and 64 transactions
    of one row each, three messages at a time, as they arrive at a member beside two others. Without
    collections.

    Args:
        transactions: Of each size of message.
    """
    loads = [
        Load(f"messages of {size} transactions", partial(_deliver, transactions, size))
        for size in MESSAGE_TRANSACTIONS
    ]
    results = run.measure(loads, nullcontext())
    return {**circumstances(), "messages": [each for (each,) in results.values()]}


def _deliver(transactions: int, size: int, _: None) -> Document:
    seconds = asyncio.run(_seconds_a_message(transactions, size))
    return {
        "transactions": size,
        "us_a_message": round(seconds * 1e6, 1),
        "us_a_transaction": round(seconds * 1e6 / size, 2),
    }


async def _seconds_a_message(transactions: int, size: int) -> float:
    """Returns the thread's time for a message of `size` transactions."""
    with scratch() as folder:
        runtime = runtime_at(folder, workers=0)
        made = _messages(runtime.member.options.settings, transactions // size, size)
        deliveries = [Delivery(place, encode_batch(each)) for place, each in enumerate(made, 1)]
        await runtime._deliver(deliveries[:WARM_MESSAGES])
        gc.collect()
        gc.freeze()
        started = time.thread_time()
        for begin in range(WARM_MESSAGES, len(deliveries), MESSAGES_AT_ONCE):
            await runtime._deliver(deliveries[begin : begin + MESSAGES_AT_ONCE])
        seconds = time.thread_time() - started
        assert runtime.committed_version == transactions // size * size, "not all were committed"
        runtime.close()
        return seconds / (len(deliveries) - WARM_MESSAGES)


def _messages(settings: GroupSettings, count: int, size: int) -> Iterator[LogBatch]:
    """Yields the first view, then messages of another member, whose transactions all pass."""
    chance = random.Random(1)
    yield LogBatch("m2", 7, 1, (), (settings, ViewProposal(0, (WRITER,))))
    for number in range(count):
        snapshot = max(number * size - SNAPSHOT_LAG, 0)
        transactions = []
        for _ in range(size):
            key = b"row/%d" % chance.getrandbits(40)
            changes = encode_changes([key], [chance.randbytes(VALUE_BYTES)])
            item = store_key_item(key)
            transactions.append(
                LoggedTransaction(chance.randbytes(16), snapshot, [item], payload=changes)
            )
        yield LogBatch("m2", 7, number + 2, transactions)


def apply(
    run: Run, transactions: int = 100_000, workers: tuple[int, ...] = (0, 1, 4), seed: int = 1
) -> Document:
    """Applies a stream: from the relay queue's append to visible rows.

    Single-row transactions of 100-byte values over 100,000 keys, stamped by WL#8440's rule, in
    appends of 64 for throughput, and of one, a tenth of the transactions, for latency: from before
    the relay queue's encoding until the rows are visible. Each append does what a member does: the
    relay queue's batch is written, then the applier takes the entries. A flusher makes commits
    durable meanwhile. The bound is the line with 0 workers, one thread that does all of it: threads
    share one interpreter, so that on this target they can only cost.

    Args:
        transactions: In appends of 64.
        workers: Numbers of them.
        seed: Of the stream.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    loads = [
        Load(f"{count} workers, appends of {size}", partial(_apply, seed, total, count, size))
        for count in workers
        for size, total in ((64, transactions), (1, transactions // 10))
    ]
    results = run.measure(loads, nullcontext())
    return {
        "seed": seed,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "results": [each for (each,) in results.values()],
    }


def _apply(
    seed: int, transactions: int, workers: int, append_transactions: int, _: None
) -> Document:
    """Applies entries, the next append when the one before is visible (appends of one) or when the
    backlog allows.
    """
    entries = _entries(transactions, seed)
    visible, visible_at = 0, 0.0

    def on_committed(version: int, _: int) -> None:
        nonlocal visible, visible_at
        visible, visible_at = version, time.perf_counter()
        flusher.request(version)

    def on_error(error: Exception) -> None:
        raise error

    latencies = []
    with scratch() as folder, Store(folder / "store", IDENTITY) as store:
        queue = RelayQueue(store)
        flusher = DurabilityFlusher(store, lambda _: None, on_error)
        target = RocksDbTarget(store, _decode, queue)
        scheme = LogicalClock(job_transactions_max=JOB_TRANSACTIONS_MAX)
        options = ApplierOptions(workers_hold_jobs=False)
        applier = Applier(target, scheme, workers, on_committed, on_error, options)
        started = time.perf_counter()
        for start in range(0, len(entries), append_transactions):
            group = entries[start : start + append_transactions]
            appended_at = time.perf_counter()
            batch = store.batch()
            queue.append(batch, group)
            store.write(batch)
            queue.written()
            applier.append(group)
            if append_transactions == 1:
                applier.drain(10)
                latencies.append((visible_at - appended_at) * 1e6)
            elif group[-1].version - visible > BACKLOG_ENTRIES_MAX:
                applier.drain(10)
        applier.drain(60)
        seconds = time.perf_counter() - started
        assert visible == len(entries)
        parallelism = applier.status().parallelism_mean
        applier.stop(10)
        flusher.stop(10)
    latencies.sort()
    return {
        "workers": workers,
        "append_transactions": append_transactions,
        "transactions_per_second": round(len(entries) / seconds),
        "latency_p50_us": round(percentile(latencies, 50), 1) if latencies else 0.0,
        "latency_p99_us": round(percentile(latencies, 99), 1) if latencies else 0.0,
        "parallelism_mean": round(parallelism, 2),
    }


def _entries(transactions: int, seed: int) -> list[RelayEntry]:
    """Returns stamped single-row transactions."""
    chance = random.Random(seed)
    writers: dict[int, int] = {}
    entries = []
    for version in range(1, transactions + 1):
        key = chance.randrange(APPLIED_KEYS)
        sequence_number = version + 1
        stamps = writers.get(key, 1), sequence_number
        writers[key] = sequence_number
        payload = key.to_bytes(KEY_BYTES, "big") + bytes(VALUE_BYTES)
        position = position_of(version, 0)
        gtid = Gtid(GROUP, version)
        entries.append(RelayEntry(position, version, gtid, *stamps, False, payload))
    return entries


def _decode(payload: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Returns the one row of a payload."""
    return [payload[:KEY_BYTES]], [payload[KEY_BYTES:]], []


def comparison(run: Run, share: float = 1.0) -> Document:
    """Digests rows for a comparison of members: processor seconds a gigabyte of keys and values.

    Rows of 100, 1,000 and 10,000 random bytes, three times each, as fast as one thread can; they
    are in RocksDB's files, in the system's cache.

    Args:
        share: Of 2 million, 300,000 and 30,000 rows.
    """
    loads = [
        Load(str(size), partial(_digest, size, max(BATCH_ROWS, round(rows * share))))
        for size, rows in ROWS_OF_BYTES.items()
    ]
    results = run.measure(loads, nullcontext())
    sizes = {size: seconds for size, (seconds,) in results.items()}
    return {**circumstances(), "seconds_a_gigabyte_by_bytes_of_a_row": sizes}


def _digest(size: int, rows: int, _: None) -> list[float]:
    """Returns the seconds of each repetition."""
    key_bytes = 0
    with scratch() as folder, Store(folder / "store", IDENTITY) as store:
        for begin in range(0, rows, BATCH_ROWS):
            batch = store.batch()
            for number in range(begin, min(begin + BATCH_ROWS, rows)):
                key = b"row/%d" % number
                key_bytes += len(key)
                batch.put(Family.DATA, ROW_PREFIX + key, os.urandom(size))
            store.write(batch)
        store.flush_tables()
        found = []
        for _repetition in range(DIGESTED):
            began = time.process_time()
            deque(digest_in_steps(1, RowsSnapshot(store.snapshot(Family.DATA))), maxlen=0)
            spent = time.process_time() - began
            found.append(round(spent / (rows * size + key_bytes) * 1e9, 2))
        return found
