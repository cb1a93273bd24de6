"""What it costs to digest rows for a comparison: processor seconds a gigabyte of keys and values.

`python -m tests.bench.bench_comparison [FILE]` digests rows of 100, 1,000 and 10,000 random bytes,
three times each, as fast as it can; the rows are in RocksDB's files, in the system's cache. With a
file it writes the result there.
"""

import os
import statistics
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from groupcert.applier.targets.rocksdb import ROW_PREFIX, RowsSnapshot
from groupcert.certifier.storage.store import Family, Store, StoreIdentity
from groupcert.members.benchmarks.machine import answer, circumstances
from groupcert.members.runtime.row_comparison import digest_in_steps

ROWS_OF_BYTES = {100: 2_000_000, 1_000: 300_000, 10_000: 30_000}
BATCH_ROWS, REPEATS = 1_000, 3


def seconds_a_gigabyte(store: Store, size: int) -> list[float]:
    """Processor seconds of each repetition."""
    rows = ROWS_OF_BYTES[size]
    key_bytes = 0
    for begin in range(0, rows, BATCH_ROWS):
        batch = store.batch()
        for number in range(begin, begin + BATCH_ROWS):
            key = b"row/%d" % number
            key_bytes += len(key)
            batch.put(Family.DATA, ROW_PREFIX + key, os.urandom(size))
        store.write(batch)
    store.flush_tables()
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        deque(digest_in_steps(1, RowsSnapshot(store.snapshot(Family.DATA))), maxlen=0)
        spent = time.process_time() - began
        found.append(round(spent / (rows * size + key_bytes) * 1e9, 2))
    return found


def main() -> None:
    """Measures each size of rows."""
    sizes = {}
    for size in ROWS_OF_BYTES:
        with tempfile.TemporaryDirectory() as folder:
            with Store(Path(folder), StoreIdentity(group="g", member="m1")) as store:
                sizes[str(size)] = found = seconds_a_gigabyte(store, size)
        seconds = statistics.median(found)
        sys.stdout.write(f"rows of {size} bytes: {seconds:.1f} s of processor a gigabyte\n")
    document = {**circumstances(), "seconds_a_gigabyte_by_bytes_of_a_row": sizes}
    answer(document, as_json=False, output=Path(sys.argv[1]) if sys.argv[1:] else None)


if __name__ == "__main__":
    main()
