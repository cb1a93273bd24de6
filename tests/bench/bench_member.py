"""What a member's event loop spends on messages of the log: decode, certify, apply, log, store.

`python -m tests.bench.bench_member` prints microseconds of its thread a message and a transaction,
for messages of 2, 8 and 64 transactions of one row each, three messages at a time, as they arrive
at a member beside two others. Without network, clients and collections; the store is where
temporary files are.
"""

import asyncio
import gc
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from groupcert.certifier.write_set import store_key_item
from groupcert.members.core.log_records import (
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    ViewProposal,
)
from groupcert.members.total_order.port import Delivery
from groupcert.members.wire.log_batches import encode_batch
from groupcert.members.wire.row_changes import encode_changes
from tests.members.runtime.test_runtime import WRITER, runtime_at

TRANSACTIONS = 24_000
WARM_MESSAGES = 60
MESSAGES_AT_ONCE = 3
SNAPSHOT_LAG = 64
VALUE_BYTES = 100


def batches(settings: GroupSettings, size: int) -> Iterator[LogBatch]:
    """The first view, then messages of another member, whose transactions all pass."""
    chance = random.Random(1)
    yield LogBatch("m2", 7, 1, (), (settings, ViewProposal(0, (WRITER,))))
    for number in range(TRANSACTIONS // size):
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


async def seconds_a_message(size: int) -> float:
    """The thread's time for a message of `size` transactions."""
    with tempfile.TemporaryDirectory() as folder:
        runtime = runtime_at(Path(folder), applier_workers=0)
        made = batches(runtime.member.options.settings, size)
        deliveries = [Delivery(place, encode_batch(each)) for place, each in enumerate(made, 1)]
        await runtime._deliver(deliveries[:WARM_MESSAGES])
        gc.collect()
        gc.freeze()
        started = time.thread_time()
        for begin in range(WARM_MESSAGES, len(deliveries), MESSAGES_AT_ONCE):
            await runtime._deliver(deliveries[begin : begin + MESSAGES_AT_ONCE])
        seconds = time.thread_time() - started
        assert runtime.committed_version == TRANSACTIONS // size * size, "not all were committed"
        runtime.close()
        return seconds / (len(deliveries) - WARM_MESSAGES)


def main() -> None:
    """Measures each size of message."""
    for size in (2, 8, 64):
        us = asyncio.run(seconds_a_message(size)) * 1e6
        sys.stdout.write(f"{size} transactions: {us:.1f} us a message, {us / size:.2f} us each\n")


if __name__ == "__main__":
    main()
