"""One run of the checker: a group, its clients, its kills, and the reading of its log."""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from groupcert import Client, Consistency
from groupcert.members.demo.local_group import LocalGroup
from tests.checker.check import Reading, find_problems
from tests.checker.kills import Kills
from tests.checker.orders import ORDERS
from tests.integration.replicas import ReplicaProcess, embedded_state
from tests.integration.waiting import wait_for
from tests.laboratory.check import check_history, first_of_each
from tests.laboratory.driver import WorkloadRun
from tests.laboratory.group_clients import Connect, Members
from tests.laboratory.history import Operation

MEMBERS = 4
COMMITS_BETWEEN = 15
"""That clients make between two kills."""
SETTINGS = {"stable_set_period_ms": 500, "certification_log_file_seconds": 5}
SCHEME = "logical-clock"
PAUSE_MS = 50
TIMEOUT_MS = 60_000
SPREAD = 0.3
"""The share of clients that spread their reads."""
LEVELS = (
    *(Consistency.EVENTUAL,) * 6,
    Consistency.BEFORE,
    Consistency.AFTER,
    Consistency.BEFORE_AND_AFTER,
)
Progress = Callable[["Run"], None]


@dataclass(slots=True)
class Run:
    """What a run has done and found."""

    seed: int
    kills: int
    order: str
    killed: Counter[str] = field(default_factory=Counter)
    processes_killed: int = 0
    told: Counter[str] = field(default_factory=Counter)
    certified: int = 0
    in_log: int = 0
    """Transactions that were decided in the log."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    folder: Path | None = None

    @property
    def replay(self) -> str:
        """The command that kills by the same schedule."""
        arguments = f"--kills {self.kills} --seed {self.seed} --order {self.order}"
        return f"python -m tests.checker {arguments}"


def check(seed: int, kills: int, order_name: str, progress: Progress) -> Run:
    """Returns a run with as many kills; its folder is the caller's to remove."""
    folder = Path(tempfile.mkdtemp(prefix="groupcert-checker-"))
    run = Run(seed, kills, order_name, folder=folder)
    began = time.monotonic()
    with ExitStack() as stack:
        order = ORDERS[order_name](folder / "log")
        stack.enter_context(order)
        group = LocalGroup(folder, members=MEMBERS, settings={**order.settings, **SETTINGS})
        stack.callback(group.stop)
        *victims, observer = group.names
        for name in victims:
            group.start_member(name)
        # Stamps are in a certification log; members without one certify in larger steps.
        group.start_member(observer, {"certification_log": str(folder / "certification-log")})
        group.wait_online()
        addresses = list(group.addresses.values())
        replica = ReplicaProcess(
            folder / "replica", addresses, f"rocksdb:{folder / 'replica' / 'target'}", SCHEME
        )
        stack.callback(replica.kill)
        replica.start()
        members = Members(group.addresses, _connect(seed), LEVELS, without_history=victims)
        workloads = WorkloadRun(members.session, seed=seed, pause_ms=PAUSE_MS)
        _kill_under_load(run, workloads, Kills(group, victims, order, replica, seed), progress)
        history = workloads.history
        history.finals = members.finals(history)
        executed, replicas = history.finals[0].gtid_executed, {}
        if executed:
            _wait_for_replica(replica, executed)
            replicas["the replica"], _ = embedded_state(folder / "replica" / "target")
        messages = order.read()
    reading = Reading(messages, observer)
    run.certified, run.in_log = reading.newest_version, len(reading.decisions)
    run.problems += find_problems(history, reading, replicas)
    run.problems += first_of_each(check_history(history))
    if run.problems:
        history.save(folder / "history.jsonl")
    run.seconds = time.monotonic() - began
    return run


def _connect(seed: int) -> Connect:
    """Returns what makes clients, some of which spread their reads over all members."""
    dice = random.Random(seed)
    return lambda addresses: Client(addresses, timeout_ms=TIMEOUT_MS, spread=dice.random() < SPREAD)


def _kill_under_load(run: Run, workloads: WorkloadRun, kills: Kills, progress: Progress) -> None:
    with workloads:
        while True:
            workloads.wait_for_commits(COMMITS_BETWEEN)
            run.told = _told(workloads.history.operations)
            progress(run)
            if run.processes_killed >= run.kills:
                break
            run.processes_killed += kills.kill_next()
            run.killed = kills.counts
    run.told = _told(workloads.history.operations)


def _told(operations: Sequence[Operation]) -> Counter[str]:
    counts: Counter[str] = Counter(each.outcome.value for each in operations)
    counts["read only"] = sum(each.is_committed and not each.has_writes for each in operations)
    return counts


def _wait_for_replica(replica: ReplicaProcess, executed: str) -> None:
    """Returns when the replica has executed a set of GTIDs, and has ended."""

    def is_there() -> bool:
        coordinator = replica.status().get("coordinator", {})
        return str(coordinator.get("gtid_executed", "")) == executed

    wait_for("the replica to have everything", is_there)
    assert replica.stop() == 0, replica.last_line()
