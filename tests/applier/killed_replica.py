"""A process that applies a source's history by any scheme until it is killed, as a replica does:
it asks for what is not executed, and numbers what it gets from its last position on.

`test_killed_applier` kills it. Each commit counts, in its own batch, how often every transaction or
part of one was executed. One line on standard output says that the applier runs.
"""

import json
import random
import sys
import time
from pathlib import Path

from groupcert.applier.engine.applier import Applier, ApplierOptions
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.applier.schemes.catalogue import scheme
from groupcert.applier.targets.rocksdb import RocksDbTarget, RowChanges
from groupcert.certifier.storage.store import Batch, Family, Store
from tests.applier.histories import decode, source_history
from tests.applier.killed_applier import fail
from tests.stores import IDENTITY

LENGTH = 1_000
WORKERS = 4
COUNT_PREFIX = b"executed/"


def history(seed: int) -> list[RelayEntry]:
    """Everything that the source has committed."""
    return source_history(seed, LENGTH)


class Counting(RocksDbTarget):
    """A target that takes different times, and counts what it executed."""

    def __init__(self, store: Store) -> None:
        def count(batch: Batch, group: CommitGroup[RowChanges], _: Checkpoint) -> None:
            for job in group.jobs:
                for entry in job.entries if job.execution is not None else ():
                    key = b"%s%d/%s" % (COUNT_PREFIX, entry.version, str(job.part or "").encode())
                    if entry.gtid:
                        executed = int(store.get(Family.META, key) or 0)
                        batch.put(Family.META, key, b"%d" % (executed + 1))

        super().__init__(store, decode, on_commit=count)

    def execute(self, job: Job[RowChanges]) -> RowChanges:
        """Executes, after a moment; now and then others overtake."""
        time.sleep(0.01 if random.random() < 0.03 else random.random() / 4_000)
        return super().execute(job)


def main(path: str, seed: str, name: str, settings: str) -> None:
    """Goes on where the process before was killed, to the end of the history."""
    with Store(Path(path), IDENTITY) as store:
        target = Counting(store)
        checkpoint = target.checkpoint() or Checkpoint()
        executed = checkpoint.gtid_executed
        applier = Applier(
            target,
            scheme(name, **json.loads(settings)),
            WORKERS,
            lambda *_: None,
            fail,
            ApplierOptions(workers_hold_jobs=True),
        )
        left = [one for one in history(int(seed)) if not one.gtid or one.gtid not in executed]
        sys.stdout.write("running\n")
        sys.stdout.flush()
        for position, one in enumerate(left, checkpoint.position + 1):
            applier.wait_for_room(100, 1 << 20, 60)
            applier.append([one._replace(position=position)])
        applier.drain()
        applier.stop(10)


if __name__ == "__main__":
    main(*sys.argv[1:])
