"""One run of the checker: a group, its clients, its kills, and the reading of its log."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from groupcert import Client, Consistency
from groupcert.members.demo.checks import settle
from groupcert.members.demo.local_group import LocalGroup
from tests.checker.check import Reading, find_problems
from tests.checker.clients import CheckedClients
from tests.checker.history import Observed, Operation, Told, write_history
from tests.checker.kills import Kills
from tests.checker.orders import ORDERS
from tests.integration.replicas import ReplicaProcess, embedded_state
from tests.integration.waiting import wait_for

MEMBERS = 4
COMMITS_BETWEEN = 15
"""That clients make between two kills."""
SETTINGS = {"stable_set_period_ms": 500, "certification_log_file_seconds": 5}
SCHEME = "logical-clock"
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
        clients = CheckedClients(addresses, seed)
        _kill_under_load(run, clients, Kills(group, victims, order, replica, seed), progress)
        observed = _observe(group, observer, replica, folder / "replica" / "target")
        messages = order.read()
    reading = Reading(messages, observer)
    run.certified, run.in_log = reading.newest_version, len(reading.decisions)
    run.problems += find_problems(clients.operations, reading, observed)
    if run.problems:
        write_history(folder / "history.jsonl", clients.operations)
    run.seconds = time.monotonic() - began
    return run


def _kill_under_load(run: Run, clients: CheckedClients, kills: Kills, progress: Progress) -> None:
    with clients.working():
        while True:
            clients.wait_for_commits(COMMITS_BETWEEN)
            run.told = _told(clients.operations)
            progress(run)
            if run.processes_killed >= run.kills:
                break
            run.processes_killed += kills.kill_next()
            run.killed = kills.counts
    run.told = _told(clients.operations)


def _told(operations: list[Operation]) -> Counter[str]:
    counts: Counter[str] = Counter(each.told.value for each in operations)
    counts["read only"] = sum(
        each.told is Told.COMMITTED and not each.writes for each in operations
    )
    return counts


def _observe(group: LocalGroup, observer: str, replica: ReplicaProcess, target: Path) -> Observed:
    """Returns what all hold once they have all that was ordered."""
    observed = Observed()
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(Client(address, consistency=Consistency.BEFORE))
            for name, address in group.addresses.items()
        }
        for client in clients.values():
            client.transaction().rollback()
        statuses = settle(list(clients.values()))
        for (name, client), status in zip(clients.items(), statuses, strict=True):
            observed.digests[name] = status.digest
            with client.transaction() as transaction:
                observed.rows[name] = dict(transaction.scan())
        for page in clients[observer].history():
            stamps = zip(page.last_committed, page.sequence_numbers, strict=True)
            observed.stamps.update(zip(page.versions, stamps, strict=True))
            observed.gtids.update(zip(page.versions, page.gtids, strict=True))
        executed = statuses[0].gtid_executed
    if executed:
        _wait_for_replica(replica, executed)
        observed.rows["the replica"], _ = embedded_state(target)
    return observed


def _wait_for_replica(replica: ReplicaProcess, executed: str) -> None:
    """Returns when the replica has executed a set of GTIDs, and has ended."""

    def is_there() -> bool:
        coordinator = replica.status().get("coordinator", {})
        return str(coordinator.get("gtid_executed", "")) == executed

    wait_for("the replica to have everything", is_there)
    assert replica.stop() == 0, replica.last_line()
