"""`groupcert demo --postgresql`: a bank in SQL at PostgreSQL servers that are primaries of a group.

Clients transfer money at all servers. One server is killed meanwhile, as if its machine had lost
its power, and is started again. When the clients stop, servers, members and what the clients were
told are checked against each other.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...certifier.errors import InvalidSetting, NotServing
from ..client.client import Client
from .checks import (
    SETTLE_SECONDS,
    Findings,
    check_equal,
    check_members,
    settle,
)
from .demo import demo_group
from .load import TICK_MS, LoadCounts
from .postgresql_bank import (
    NO_CHANGE,
    SCHEMA,
    BankLoad,
    check_servers,
    ledger,
    member_ledger,
    settle_servers,
)
from .postgresql_report import Kill, Outcome, commits_in_words, show
from .postgresql_servers import Primary
from .report import demo_folder, finish, summary_of, write_json

KILLED_AT, STARTED_AT = 0.25, 0.5
"""When the one server is killed and started again, as parts of the load's time."""


def main(
    *,
    members: int,
    clients: int,
    seconds: float,
    as_json: bool,
    certification_log: Path | None = None,
) -> int:
    """Runs the demo, with a server for each member; returns 1 if a check failed, and keeps the
    folder then.

    Raises:
        InvalidSetting: There are no two servers, or there is something in `certification_log`.
        ServerMissing: PostgreSQL is not installed.
        UnsuitableTarget: It has no PL/Python.
    """
    if members < 2:
        expected = "2 or more, as one server is killed"
        raise InvalidSetting(name="--members", value=members, expected=expected)
    console = Console(stderr=True)
    with ExitStack() as stack:
        folder = stack.enter_context(demo_folder())
        group = demo_group(folder, members, certification_log)
        console.print(f"starting {members} PostgreSQL servers in {folder}")
        primaries = [Primary(name, address, folder) for name, address in group.addresses.items()]
        for primary in primaries:
            stack.enter_context(primary.server)
            primary.attach(SCHEMA)
            console.print(f"  {primary.name}  psql {primary.dsn}")
        console.print(f"starting a log server, {members} members, and a companion at each server")
        stack.enter_context(group)
        for primary in primaries:
            stack.enter_context(primary.companion)
        for primary in primaries:
            primary.wait_until_it_commits(NO_CHANGE)
        observers = [stack.enter_context(Client(address)) for address in group.addresses.values()]
        outcome = _run(console, primaries, observers, clients=clients, seconds=seconds)
    if as_json:
        write_json(outcome.summary, outcome.document())
    else:
        show(outcome)
    return finish(console, outcome.summary, folder)


def _run(
    console: Console,
    primaries: Sequence[Primary],
    observers: Sequence[Client],
    *,
    clients: int,
    seconds: float,
) -> Outcome:
    """Runs the load, and the checks after it."""
    load = BankLoad(primaries, clients)
    watch = Watch(console, load, primaries, observers)
    console.print(f"{clients} clients transfer money at all servers")
    with watch.live, load.running():
        kill = _kill_one(watch, load, primaries[1], seconds)
        watch.until(seconds)
    took = watch.elapsed
    console.print("clients stopped; checking every server and every member")
    statuses = settle(observers)
    settle_servers(primaries, max(status.certified_version for status in statuses))
    counts = LoadCounts()
    for primary in primaries:
        counts.add(load.counts(primary.name))
    findings = Findings()
    check_members(observers, statuses, findings)
    ledgers = check_servers(primaries, set(counts.committed_ids), findings)
    for (name, on_server), member in zip(ledgers.items(), observers, strict=True):
        both = {"server": on_server, "member": member_ledger(member)}
        check_equal(f"{name}: server and member", "transfers", both, findings)
    return Outcome(
        summary=summary_of(statuses, counts, took, findings),
        postgresql=primaries[0].server_version(),
        kill=kill,
        counts=counts,
        unknown_committed=len(ledgers[primaries[0].name].intersection(counts.unknown_ids)),
        companion_restarts=sum(primary.companion_restarts for primary in primaries),
        conflicts=load.first_conflicts(),
    )


def _kill_one(watch: "Watch", load: BankLoad, primary: Primary, seconds: float) -> Kill:
    """Kills a server, starts it again, and returns once a client has committed there.

    Raises:
        NotServing: No client could, long after its start.
    """
    name = primary.name
    watch.until(seconds * KILLED_AT)
    primary.server.kill()
    watch.say(f"killed the server {name} (SIGKILL): its clients go on at the others")
    watch.until(seconds * STARTED_AT)
    acknowledged, began = set(load.counts(name).committed_ids), watch.elapsed
    primary.server.start()
    primary.server.wait_ready()
    lost = acknowledged - ledger(primary)
    watch.say(
        f"started {name} again: it lacks {commits_in_words(len(lost))} that it had acknowledged"
    )

    def commits_again() -> bool:
        return load.commits(name) > len(acknowledged)

    watch.until(began + SETTLE_SECONDS, commits_again)
    if not commits_again():
        raise NotServing(member=f"PostgreSQL {name}", state="started, but takes no commits")
    watch.say(f"{name} has executed what it lacked from the group's log, and takes commits")
    return Kill(name, len(lost), round(watch.elapsed - began, 2))


class Watch:
    """Looks after the companions while clients write, and shows servers and members."""

    def __init__(
        self,
        console: Console,
        load: BankLoad,
        primaries: Sequence[Primary],
        observers: Sequence[Client],
    ) -> None:
        """Counts the seconds from here."""
        self.live = Live(console=console, refresh_per_second=8, transient=True)
        self._load = load
        self._primaries = primaries
        self._observers = observers
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """Prints what has happened, above the view."""
        self.live.console.print(f"{self.elapsed:5.1f} s  {text}")

    def until(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Returns at a time of the load, or once something is over."""
        while (left := seconds - self.elapsed) > 0 and not is_over():
            for primary in self._primaries:
                primary.tend_companion()
            self.live.update(self._view())
            time.sleep(min(left, TICK_MS / 1000))

    def _view(self) -> Group:
        table = Table("server", "commits", "40001", "version", "behind", "member", "certified")
        statuses = [client.status().observer for client in self._observers]
        newest = max(status.certified_version for status in statuses)
        commits = 0
        for primary, status in zip(self._primaries, statuses, strict=True):
            counts = self._load.counts(primary.name)
            commits += len(counts.committed_ids)
            version: int | None = None
            with suppress(psycopg.OperationalError):
                version = primary.version()
            table.add_row(
                primary.name if version is not None else Text(f"{primary.name} is down", "red"),
                f"{len(counts.committed_ids):,}",
                f"{counts.conflicts:,}",
                "" if version is None else f"{version:,}",
                "" if version is None else f"{max(newest - version, 0):,}",
                status.reason or "ONLINE",
                f"{status.transactions_certified:,}",
            )
        rate = commits / max(self.elapsed, 0.001)
        return Group(Text(f"{self.elapsed:4.1f} s   {commits:,} commits   {rate:,.0f}/s"), table)
