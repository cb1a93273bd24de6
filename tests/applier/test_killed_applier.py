"""SIGKILL at random moments: whatever was written survives, and each transaction takes effect once.

A child applies a history that follows from a seed. After each kill the store is opened here and
compared with the serial execution of the prefix that its checkpoint names.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from applier.relay_queue import RelayEntry, RelayQueue
from applier.targets.rocksdb import RocksDbTarget, applied_intervals
from certifier.store import Store
from tests.applier import killed_applier
from tests.applier.histories import decode, serial_rows

KILLS = 5
SECONDS_MAX = 60


def start(path: Path, seed: int, workers: int) -> "subprocess.Popen[str]":
    module = killed_applier.__name__
    command = [sys.executable, "-m", module, str(path), str(seed), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_store(path: Path, history: list[RelayEntry]) -> int:
    """Asserts that rows, history, checkpoint and relay queue agree; returns how many entries were
    executed.
    """
    with Store(path, killed_applier.IDENTITY) as store:
        queue = RelayQueue(store)
        target = RocksDbTarget(store, decode, queue)
        checkpoint = target.checkpoint()
        position = checkpoint.position if checkpoint else -1
        done = [entry for entry in history if entry.position <= position]
        read = killed_applier.position_read(store)
        waiting = [entry for group in queue.load() for entry in group]
        assert dict(target.open_snapshot().scan()) == serial_rows(done)
        versions = [interval.version for interval in applied_intervals(store)]
        assert versions == [entry.version for entry in done if entry.gtid]
        if checkpoint:
            assert len(checkpoint.gtid_executed) == checkpoint.version == versions[-1]
        assert [entry for entry in waiting if entry.position > position] == [
            entry for entry in history if position < entry.position <= read
        ]
    return len(done)


@pytest.mark.parametrize("workers", [0, 4])
def test_each_transaction_takes_effect_once_whenever_the_process_is_killed(
    tmp_path: Path, workers: int
) -> None:
    seed = 11 + workers
    chance = random.Random(seed)
    history = killed_applier.history(seed)
    executed = [0]
    for _ in range(KILLS):
        with start(tmp_path, seed, workers) as child:
            assert child.stdout
            assert child.stdout.readline() == "running\n"
            time.sleep(chance.uniform(0, 0.02))
            child.send_signal(signal.SIGKILL)
        executed.append(check_store(tmp_path, history))
    assert executed == sorted(executed)
    with start(tmp_path, seed, workers) as child:
        _, errors = child.communicate(timeout=SECONDS_MAX)
    assert (child.returncode, errors) == (0, "")
    assert check_store(tmp_path, history) == len(history)
