"""`groupcert demo --postgresql`: a bank in SQL at PostgreSQL servers that are primaries of a group.

Clients transfer money at all servers. They are written as for one PostgreSQL: they run a
transaction again after SQLSTATE 40001, and go on at another server where one does not answer or
takes no writes. One server is killed meanwhile, as if its machine had lost its power, and is
started again. Of each transfer there is a row under an id that its client has drawn: when the
clients stop, servers, members and what the clients were told are checked against each other.
"""

import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import psycopg
from psycopg import errors
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from ...certifier.errors import InvalidSetting, NotServing
from ..client.client import Client
from .demo import demo_options
from .demo_report import Answer, DemoSummary, LiveTable, Row, demo_folder, finish, summary_of
from .group_checks import (
    SETTLE_SECONDS,
    SHOWN_MAX,
    Findings,
    check_decisions,
    check_equal,
    check_ledger,
    check_total,
    settle,
)
from .load import PAUSE_SECONDS, TICK_MS, LoadCounts
from .postgresql_servers import GroupAtServers, Primary

ACCOUNTS = 200
INITIAL_BALANCE = 1_000
SCHEMA = f"""
CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE transfers (
    id uuid PRIMARY KEY, source int NOT NULL, target int NOT NULL, amount int NOT NULL
);
INSERT INTO accounts SELECT id, {INITIAL_BALANCE} FROM generate_series(1, {ACCOUNTS}) id;
"""
KILLED_AT, STARTED_AT = 0.25, 0.5
"""When the one server is killed and started again, as parts of the load's time."""
SESSION_SECONDS = 2.0
"""After which a client opens a session at the next server, as a pool of connections may do."""
POLL_SECONDS = 0.05
COLUMNS = ("server", "commits", "40001", "version", "behind", "member", "certified")
_RETRIED = (errors.SerializationFailure, errors.DeadlockDetected, errors.QueryCanceled)
_UNKNOWN = ("08", "57P")
"""How the SQLSTATE of a COMMIT begins whose outcome nobody has told."""
_DIGESTS = """
SELECT (SELECT md5(string_agg(accounts::text, ',' ORDER BY id)) FROM accounts),
    (SELECT md5(string_agg(transfers::text, ',' ORDER BY id)) FROM transfers)
"""
_MISBOOKED = f"""
SELECT id, balance, {INITIAL_BALANCE} + coalesce(sum(moved), 0)::bigint AS expected
FROM accounts LEFT JOIN (
    SELECT target AS id, amount AS moved FROM transfers
    UNION ALL SELECT source, -amount FROM transfers
) AS movements USING (id)
GROUP BY id HAVING balance <> {INITIAL_BALANCE} + coalesce(sum(moved), 0) ORDER BY id
"""


class Transfer(NamedTuple):
    """An amount that is to move from one account to another."""

    id: uuid.UUID
    source: int
    target: int
    amount: int


class Conflict(NamedTuple):
    """What a client got at a server whose transaction another server's was ahead of."""

    server: str
    sqlstate: str
    message: str
    detail: str
    hint: str


class BankClient:
    """One client: a transfer after the other, at one server for a while, then at the next."""

    def __init__(self, number: int, primaries: Sequence[Primary], stopped: threading.Event) -> None:
        """Begins at the server `number`, counted round the servers; ends once `stopped` is set."""
        self.counts = {primary.name: LoadCounts() for primary in primaries}
        """What it was told, by server."""
        self.conflicts: list[Conflict] = []
        self._turns = islice(cycle(primaries), number % len(primaries), None)
        self._chance = random.Random(number)
        self._stopped = stopped

    def run(self) -> None:
        """Transfers until it is stopped."""
        for primary in self._turns:
            if self._stopped.is_set():
                return
            try:
                session = primary.connect()
            except psycopg.OperationalError:
                self.counts[primary.name].unavailable += 1
                self._stopped.wait(PAUSE_SECONDS)
                continue
            # The transfer under way is given up with the session; `_transfer` has counted it.
            with session, suppress(psycopg.OperationalError, errors.ReadOnlySqlTransaction):
                end = time.monotonic() + SESSION_SECONDS
                while time.monotonic() < end and not self._stopped.is_set():
                    self._transfer(session, primary.name)

    def _transfer(self, session: "psycopg.Connection[Any]", server: str) -> None:
        """Makes a transfer, and begins again where another transaction was first.

        Raises:
            psycopg.OperationalError: The session has ended, or nobody knows about the COMMIT.
            ReadOnlySqlTransaction: The server takes no writes now.
        """
        source, target = self._chance.sample(range(1, ACCOUNTS + 1), 2)
        transfer = Transfer(uuid.uuid4(), source, target, self._chance.randint(1, 10))
        counts = self.counts[server]
        while not self._stopped.is_set():
            began = time.perf_counter()
            is_at_commit = False
            try:
                _book(session, transfer)
                is_at_commit = True
                session.commit()
            except _RETRIED as error:
                session.rollback()
                counts.conflicts += 1
                self._note(server, error)
            except psycopg.Error as error:
                state = error.sqlstate
                if is_at_commit and (state is None or state.startswith(_UNKNOWN)):
                    counts.unknown_ids.append(transfer.id.bytes)
                else:
                    counts.unavailable += 1
                raise
            else:
                counts.latencies_ms.append((time.perf_counter() - began) * 1000)
                counts.committed_ids.append(transfer.id.bytes)
                return

    def _note(self, server: str, error: psycopg.Error) -> None:
        """Keeps what the group has said of a conflict; of those within one server it says none."""
        diagnosis = error.diag
        if diagnosis.message_detail and "at member" in diagnosis.message_detail:
            self.conflicts.append(
                Conflict(
                    server,
                    error.sqlstate or "",
                    diagnosis.message_primary or "",
                    diagnosis.message_detail,
                    diagnosis.message_hint or "",
                )
            )


class BankLoad:
    """All clients of the bank."""

    def __init__(self, primaries: Sequence[Primary], clients: int) -> None:
        self._stopped = threading.Event()
        self._clients = [BankClient(number, primaries, self._stopped) for number in range(clients)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the clients within the block. Raises what one of them did not expect."""
        with ThreadPoolExecutor(len(self._clients)) as pool:
            try:  # An interrupt may come before all of them run.
                tasks = [pool.submit(client.run) for client in self._clients]
                yield
            finally:
                self._stopped.set()
            for task in tasks:
                task.result()

    def counts(self, server: str) -> LoadCounts:
        """Returns the answers that clients got at a server until now."""
        total = LoadCounts()
        for client in self._clients:
            total.add(client.counts[server])
        return total

    def commits(self, server: str) -> int:
        """Returns the number of commits that clients were told of at a server until now."""
        return len(self.counts(server).committed_ids)

    def first_conflicts(self) -> list[Conflict]:
        """Returns a conflict between servers as a client got it, of each server that had some."""
        of_servers: dict[str, Conflict] = {}
        for client in self._clients:
            for conflict in client.conflicts:
                of_servers.setdefault(conflict.server, conflict)
        return sorted(of_servers.values())


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
        durations = self.counts.document(self.summary.seconds)
        return {
            "postgresql": self.postgresql,
            "p50_ms": durations["p50_ms"],
            "p99_ms": durations["p99_ms"],
            "retried": self.counts.conflicts,
            "unknown": len(self.counts.unknown_ids),
            "unknown_committed": self.unknown_committed,
            "killed": self.kill._asdict(),
            "conflict_examples": [conflict._asdict() for conflict in self.conflicts],
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
        console.print(f"starting {members} PostgreSQL servers, each with a member, in {folder}")
        names, password = (f"m{number}" for number in range(1, members + 1)), secrets.token_hex(16)
        primaries = [Primary(name, folder, password=password) for name in names]
        options = demo_options(folder, certification_log)
        group = GroupAtServers(primaries, folder, schema=SCHEMA, **options)
        stack.enter_context(group)
        for primary in primaries:
            console.print(f"  {primary.name}  psql {primary.dsn}")
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
    check_decisions(statuses, findings)
    ledgers = check_servers(primaries, set(counts.committed_ids), findings)
    return Outcome(
        summary=summary_of(statuses, counts, took, findings),
        postgresql=primaries[0].server_version(),
        kill=kill,
        counts=counts,
        unknown_committed=len(ledgers[primaries[0].name].intersection(counts.unknown_ids)),
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
    """Shows servers and members while clients write."""

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
    durations = counts.document(summary.seconds)
    yield (
        "acknowledged",
        f"{summary.acknowledged:,} commits in {summary.seconds:.1f} s "
        f"({summary.commits_per_second:,.0f}/s) by {summary.members} PostgreSQL "
        f"{outcome.postgresql}; {durations['p50_ms']:.1f} ms (p50), "
        f"{durations['p99_ms']:.1f} ms (p99)",
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


def ledger(primary: Primary) -> frozenset[bytes]:
    """Returns the ids of the transfers that a server has."""
    rows = primary.query("SELECT id FROM transfers")
    return frozenset(transfer_id.bytes for (transfer_id,) in rows)


def settle_servers(primaries: Sequence[Primary], version: int) -> None:
    """Waits until all servers show a version.

    Raises:
        NotServing: One does not get there in time.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    for primary in primaries:
        while (shown := primary.version()) < version:
            if time.monotonic() > deadline:
                state = f"at version {shown}, behind version {version}"
                raise NotServing(member=f"PostgreSQL {primary.name}", state=state)
            time.sleep(POLL_SECONDS)


def check_servers(
    primaries: Sequence[Primary], acknowledged: set[bytes], findings: Findings
) -> dict[str, frozenset[bytes]]:
    """Checks servers that show the same version: against each other, each by itself, and against
    what clients were told. Returns the transfers that each has.
    """
    digests = {primary.name: tuple(primary.query(_DIGESTS)) for primary in primaries}
    check_equal("servers", "rows", digests, findings)
    ledgers = {primary.name: ledger(primary) for primary in primaries}
    for primary in primaries:
        ((total,),) = primary.query("SELECT sum(balance)::bigint FROM accounts")
        check_total(total, ACCOUNTS * INITIAL_BALANCE, primary.name, findings)
        check_ledger(ledgers[primary.name], acknowledged, primary.name, findings)
        _check_bookings(primary, findings)
    return ledgers


def _check_bookings(primary: Primary, findings: Findings) -> None:
    """Checks that each account holds what the transfers have moved: each of them once."""
    wrong = primary.query(_MISBOOKED)
    findings.exactly_once &= not wrong
    for account, balance, expected in wrong[:SHOWN_MAX]:
        findings.texts.append(
            f"{primary.name}: account {account} holds {balance}, its transfers make {expected}"
        )


def _book(session: "psycopg.Connection[Any]", transfer: Transfer) -> None:
    """Writes a transfer's rows; accounts in the order of their numbers, against deadlocks."""
    movements = ((transfer.source, -transfer.amount), (transfer.target, transfer.amount))
    for account, change in sorted(movements):
        session.execute(
            "UPDATE accounts SET balance = balance + %s WHERE id = %s", (change, account)
        )
    session.execute("INSERT INTO transfers VALUES (%s, %s, %s, %s)", transfer)
