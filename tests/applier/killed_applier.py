"""A process that applies an endless history until it is killed; `test_killed_applier` kills it.

The history follows from its seed, so whoever looks at the store afterwards knows what every
prefix of it must have left. One line on standard output says that the applier runs.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from groupcert.applier.engine.applier import Applier, ApplierOptions
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.applier.queue.target_progress import DurabilityFlusher
from groupcert.applier.schemes.logical_clock import LogicalClock
from groupcert.applier.targets.rocksdb import RocksDbTarget
from groupcert.certifier.storage.store import Family, Store
from tests.applier.histories import VIEW_CHANGE, Step, decode, entries_of, remote
from tests.stores import IDENTITY, writing

LENGTH = 1_500
READ_KEY = b"log-position"


def history(seed: int) -> list[RelayEntry]:
    """Everything that can ever be delivered."""
    chance = random.Random(seed)
    steps = []
    for _ in range(LENGTH):
        step = remote(*chance.choices(range(20), k=2))
        kind = chance.random()
        steps.append(Step(step.items, local=True) if kind < 0.2 else step)
        if kind > 0.98:
            steps.append(VIEW_CHANGE)
    return entries_of(steps)


def portions(entries: list[RelayEntry], chance: random.Random) -> Iterator[list[RelayEntry]]:
    """The entries as messages of the log bring them."""
    while entries:
        size = chance.choice((1, 3, 16))
        yield entries[:size]
        entries = entries[size:]


def position_read(store: Store) -> int:
    """How far the log was read, stored with the relay queue's groups."""
    stored = store.get(Family.META, READ_KEY)
    return int(stored) if stored else -1


def main(path: str, seed: str, workers: str) -> None:
    """Goes on where the process before was killed, to the end of the history."""
    entries = history(int(seed))
    with Store(Path(path), IDENTITY) as store:
        queue = RelayQueue(store)
        target = RocksDbTarget(store, decode, queue, record_history=True)
        flusher = DurabilityFlusher(store, lambda _: None, fail, period_ms=1)
        applier = Applier(
            target,
            LogicalClock(job_transactions_max=4),
            int(workers),
            lambda version, _: flusher.request(version),
            fail,
            ApplierOptions(workers_hold_jobs=False),
        )
        applier.recover(queue.load())
        sys.stdout.write("running\n")
        sys.stdout.flush()
        read = position_read(store)
        left = [entry for entry in entries if entry.position > read]
        for portion in portions(left, random.Random(read)):
            with writing(store) as batch:
                queue.append(batch, portion)
                batch.put(Family.META, READ_KEY, b"%d" % portion[-1].position)
            queue.written()
            applier.append(portion)
            while applier.status().length > 100:
                applier.drain(0.001)
        applier.drain()
        applier.stop(10)
        flusher.stop(10)


def fail(error: Exception) -> None:
    """An error here is a failure of the test: the process says it and is not found running."""
    sys.stderr.write(f"{error!r} {getattr(error, '__notes__', '')}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
