"""`groupcert demo --postgresql`: a bank in SQL at PostgreSQL servers that are primaries of a group.

Clients transfer money at all servers. One server is killed meanwhile, as if its machine had lost
its power, and is started again. When the clients stop, servers, members and what the clients were
told are checked against each other.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import psycopg
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from ...certifier.errors import InvalidSetting, NotServing
from ..client.client import Client
from .demo import demo_group
from .demo_report import Answer, DemoSummary, LiveTable, Row, demo_folder, finish, summary_of
from .group_checks import SETTLE_SECONDS, Findings, check_equal, check_members, settle
from .load import TICK_MS, LoadCounts
from .postgresql_bank import (
    NO_CHANGE,
    SCHEMA,
    BankLoad,
    Conflict,
    check_servers,
    ledger,
    member_ledger,
    settle_servers,
)
from .postgresql_servers import Primary

KILLED_AT, STARTED_AT = 0.25, 0.5
"""When the one server is killed and started again, as parts of the load's time."""

COLUMNS = ("server", "commits", "40001", "version", "behind", "member", "certified")


class Kill(NamedTuple):
    """A server that was killed and started again."""

    server: str
    not_on_disk: int
    """Commits that it had acknowledged and came back without; the group's log had them."""
    back_seconds: float
    """From its start to the first commit of a client there."""


class Outcome(NamedTuple):
    """What the demo has seen, beside what its summary says."""

    summary: DemoSummary
    postgresql: str
    """Version of the servers."""
    kill: Kill
    counts: LoadCounts
    unknown_committed: int
    """How many of the transfers are there whose outcome no client was told."""
    companion_restarts: int
    conflicts: Sequence[Conflict]
    """One of each server, if there were any between servers."""

    def answer(self) -> Answer:
        """Returns events, and conflicts as clients got them, to stand beside the summary."""
        story = Table.grid(padding=(0, 2))
        story.add_column(style="bold", no_wrap=True)
        for title, text in _story(self):
            story.add_row(title, text)
        shown: list[RenderableType] = ["", story]
        for conflict in self.conflicts:
            shown += [f"\nCOMMIT at {conflict.server}, as psql prints it:", _Printed(conflict)]
        converged = "all servers, and all members, are equal row for row"
        return Answer(converged, "server", shown, self._document())

    def _document(self) -> dict[str, object]:
        """Returns the part of the JSON document beside the summary."""
        told = self.counts.document(self.summary.seconds)
        return {
            "postgresql": self.postgresql,
            "p50_ms": told["p50_ms"],
            "p99_ms": told["p99_ms"],
            "retried": self.counts.conflicts,
            "unknown": len(self.counts.unknown_ids),
            "unknown_committed": self.unknown_committed,
            "killed": self.kill._asdict(),
            "companion_restarts": self.companion_restarts,
            "conflict_examples": [each._asdict() for each in self.conflicts],
        }


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
    return finish(console, outcome.summary, outcome.answer(), folder, as_json=as_json)


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
        self._view = LiveTable(console, COLUMNS, self._rows)
        self.live = self._view.live
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
            commits = sum(self._load.commits(primary.name) for primary in self._primaries)
            self._view.draw(commits, self.elapsed)
            time.sleep(min(left, TICK_MS / 1000))

    def _rows(self) -> Iterator[Row]:
        statuses = [client.status().observer for client in self._observers]
        newest = max(status.certified_version for status in statuses)
        for primary, status in zip(self._primaries, statuses, strict=True):
            counts = self._load.counts(primary.name)
            name: RenderableType = Text(f"{primary.name} is down", "red")
            version = behind = ""
            with suppress(psycopg.OperationalError):
                shown = primary.version()
                name, version = primary.name, f"{shown:,}"
                behind = f"{max(newest - shown, 0):,}"
            yield (
                name,
                f"{len(counts.committed_ids):,}",
                f"{counts.conflicts:,}",
                version,
                behind,
                status.reason or "ONLINE",
                f"{status.transactions_certified:,}",
            )


class _Printed(NamedTuple):
    """An error as psql prints it where VERBOSITY is verbose, in lines of the console's length."""

    conflict: Conflict

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        conflict = self.conflict
        parts = {
            "ERROR": f"{conflict.sqlstate}: {conflict.message}",
            "DETAIL": conflict.detail,
            "HINT": conflict.hint,
        }
        for part, text in parts.items():
            line = f"{part}:  {text}"
            yield Text(
                fill(line, options.max_width, initial_indent="  ", subsequent_indent="      ")
            )


def _story(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Yields the events, with a title each."""
    summary, counts, kill = outcome.summary, outcome.counts, outcome.kill
    told = counts.document(summary.seconds)
    yield (
        "acknowledged",
        f"{summary.acknowledged:,} commits in {summary.seconds:.1f} s "
        f"({summary.commits_per_second:,.0f}/s) by {summary.members} PostgreSQL "
        f"{outcome.postgresql}; {told['p50_ms']:.1f} ms (p50), {told['p99_ms']:.1f} ms (p99)",
    )
    yield (
        "conflicts",
        f"SQLSTATE 40001 in {counts.conflicts:,} transactions, of which {summary.conflicts:,} lost "
        "to another server; their clients ran them again",
    )
    yield (
        "unknown",
        f"the outcome of {commits_in_words(len(counts.unknown_ids))}, of which "
        f"{outcome.unknown_committed} are there",
    )
    yield (
        f"{kill.server} killed",
        f"it came back without {commits_in_words(kill.not_on_disk)} that it had acknowledged, "
        "executed them from the group's log, and took new ones "
        f"{kill.back_seconds:.1f} s after its start",
    )


def commits_in_words(count: int) -> str:
    """Returns a number of commits, as a text has it.

    >>> commits_in_words(1), commits_in_words(1_200)
    ('1 commit', '1,200 commits')
    """
    return f"{count:,} commit" + ("" if count == 1 else "s")
