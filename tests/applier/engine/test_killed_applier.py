"""SIGKILL at random moments: whatever was written survives, and each transaction takes effect once.

A child applies a history that follows from a seed. After each kill the store is opened here and
compared with the serial execution of the prefix that its checkpoint names.
"""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.applier.queue.row_parts import table_of
from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.applier.targets.rocksdb import RocksDbTarget, applied_intervals
from groupcert.certifier.storage.store import Family, Store
from tests.applier import killed_applier, killed_replica
from tests.applier.histories import decode, serial_rows
from tests.stores import IDENTITY

pytestmark = [pytest.mark.slow, pytest.mark.in_turns]
KILLS = 3
SECONDS_MAX = 240


def start(module: ModuleType, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", module.__name__, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_store(path: Path, history: list[RelayEntry]) -> int:
    """Asserts that rows, history, checkpoint and relay queue agree; returns how many entries were
    executed.
    """
    with Store(path, IDENTITY) as store:
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
        with start(killed_applier, tmp_path, seed, workers) as child:
            assert child.stdout
            assert child.stdout.readline() == "running\n"
            time.sleep(chance.uniform(0, 0.02))
            child.send_signal(signal.SIGKILL)
        executed.append(check_store(tmp_path, history))
    assert executed == sorted(executed)
    with start(killed_applier, tmp_path, seed, workers) as child:
        _, errors = child.communicate(timeout=SECONDS_MAX)
    assert (child.returncode, errors) == (0, "")
    assert check_store(tmp_path, history) == len(history)


def executed_of(entry: RelayEntry, checkpoint: Checkpoint) -> RelayEntry | None:
    """What the checkpoint says was executed of a transaction: all, some tables or nothing."""
    if not entry.gtid:
        return None
    if entry.gtid in checkpoint.gtid_executed:
        return entry
    tables = checkpoint.parts.get(entry.gtid, frozenset())
    rows = [row for row in json.loads(entry.payload) if table_of(row[0].encode()) in tables]
    return entry._replace(payload=json.dumps(rows).encode()) if rows else None


def check_replica(path: Path, history: list[RelayEntry]) -> Checkpoint:
    """Asserts that the rows are those of what is executed, each part of it once."""
    with Store(path, IDENTITY) as store:
        target = RocksDbTarget(store, decode)
        checkpoint = target.checkpoint() or Checkpoint()
        rows = dict(target.open_snapshot().scan())
        counts: dict[int, dict[str, int]] = {}
        for key, stored in store.scan(Family.META):
            if key.startswith(killed_replica.COUNT_PREFIX):
                version, part = key.decode().split("/", 2)[1:]
                counts.setdefault(int(version), {})[part] = int(stored)
    done = [found for entry in history if (found := executed_of(entry, checkpoint))]
    assert rows == serial_rows(done)
    assert counts.keys() == {entry.version for entry in done}
    assert all(set(count.values()) == {1} for count in counts.values())
    for gtid, parts in checkpoint.parts.items():
        assert counts[gtid.number].keys() == parts
    return checkpoint


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("database", {}),
        ("table", {}),
        ("group-commit", {}),
        ("jobs", {"conflicts": "ignore"}),
        ("rows", {}),
    ],
)
def test_a_killed_replica_fills_its_gaps_and_executes_each_part_of_each_transaction_once(
    tmp_path: Path, name: str, settings: dict[str, str]
) -> None:
    seed = len(name)
    chance = random.Random(seed)
    history = killed_replica.history(seed)
    arguments = (tmp_path, seed, name, json.dumps(settings))
    checkpoints = []
    for _ in range(KILLS):
        with start(killed_replica, *arguments) as child:
            assert child.stdout
            assert child.stdout.readline() == "running\n"
            time.sleep(chance.uniform(0.005, 0.05))
            child.send_signal(signal.SIGKILL)
        checkpoints.append(check_replica(tmp_path, history))
    executed = [len(checkpoint.gtid_executed) for checkpoint in checkpoints]
    assert executed == sorted(executed)
    with start(killed_replica, *arguments) as child:
        _, errors = child.communicate(timeout=SECONDS_MAX)
    assert (child.returncode, errors) == (0, "")
    checkpoint = check_replica(tmp_path, history)
    assert len(checkpoint.gtid_executed) == history[-1].version
    assert checkpoint.parts == {}
