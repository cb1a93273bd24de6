"""One run of the fuzzer: a group, its honest clients, who fuzzes it, and who watches."""

import asyncio
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.security.access import Role
from groupcert.members.security.credentials import Credentials
from tests.certificates import Authority, tls_settings
from tests.fuzz.callers import Callers
from tests.fuzz.framed_sessions import FramedSessions
from tests.fuzz.log_messages import LogMessages
from tests.fuzz.orders import ORDERS, FuzzedOrder
from tests.fuzz.raw_connections import RawConnections
from tests.fuzz.unread_answers import UnreadAnswers
from tests.fuzz.values import Answers
from tests.fuzz.watched_member import DELAYS_VARIABLE
from tests.fuzz.watcher import HELD_MS_MAX, Watcher, held_ms, serving_delays
from tests.laboratory.bank_load import BankLoad, find_problems

SETTINGS = {
    "stable_set_period_ms": 500,
    "snapshots_max": 500,
    "snapshot_lease_ms": 5_000,
    "outcomes_max": 10_000,
    "binary_log_retention_bytes": 64 << 20,
    "certification_log_file_seconds": 10,
}
"""Limits that are reached within a minute, so that what grows afterwards grows for ever."""
HONEST_CLIENTS, HONEST_PAUSE_SECONDS = 4, 0.05
HONEST, FUZZING, MEMBER = "token-of-the-honest", "token-of-the-fuzzer", "token-of-a-member"
MODULE = "tests.fuzz.watched_member"
POLL_SECONDS = 0.25
TRANSPORTS = ("plain", "tls")
Progress = Callable[["Run", float], None]


@dataclass(slots=True)
class Run:
    """What one run has done and found."""

    seed: int
    order: str
    transport: str
    seconds: float
    held_ms_max: int
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    connections: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    """Calls whose answers nobody reads."""
    log_messages: Counter[str] = field(default_factory=Counter)
    skipped_messages: int = 0
    came_back: int = 0
    commits: int = 0
    worst_held_ms: int = 0
    worst_late_ms: int = 0
    resident_mib: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each member, after the warm-up and at the end."""
    problems: list[str] = field(default_factory=list)
    folder: Path | None = None
    """Kept where there are problems."""

    @property
    def replay(self) -> str:
        """The command that makes the same calls again."""
        drawn = f"--seed {self.seed} --seconds {self.seconds:g}"
        if self.held_ms_max != HELD_MS_MAX:
            drawn += f" --held-ms {self.held_ms_max}"
        return f"python -m tests.fuzz {drawn} --order {self.order} --transport {self.transport}"


class _FuzzedGroup(LocalGroup):
    """Three members, the first of them with a certification log."""

    def start_member(self, name: str, settings: Mapping[str, object] | None = None) -> None:
        """Starts a member."""
        if name == self.names[0]:
            settings = {**(settings or {}), "certification_log": str(self.folder / "history")}
        super().start_member(name, settings)


class _Fuzzing:
    """What runs at the same time in one run."""

    def __init__(self, run: Run, order: FuzzedOrder, folder: Path) -> None:
        self.run = run
        self.order = order
        self.folder = folder
        tls = None
        (folder / "member.token").write_text(MEMBER)
        settings: dict[str, object] = {
            **SETTINGS,
            **order.settings,
            "access": str(_access(folder)),
            "token_file": str(folder / "member.token"),
        }
        if run.transport == "tls":
            authority = Authority(folder / "certificates")
            settings |= tls_settings(authority.issue("member"))
            tls = authority.issue("client")
        honest, fuzzing = (Credentials(tls=tls, token=each) for each in (HONEST, FUZZING))
        self.group = _FuzzedGroup(folder, settings=settings, credentials=honest, module=MODULE)
        os.environ[DELAYS_VARIABLE] = str(folder / "{member}-delays.jsonl")
        addresses, seed = self.group.addresses, f"{run.seed}/{run.transport}"
        answers = Answers()
        self.honest = BankLoad(honest, pause_seconds=HONEST_PAUSE_SECONDS)
        self.callers = Callers(addresses, fuzzing, seed, answers)
        self.connections = RawConnections(addresses, fuzzing, seed)
        self.unread = UnreadAnswers(addresses, fuzzing, seed, answers)
        self.frames = FramedSessions(addresses, fuzzing, seed, answers)
        self.watcher = Watcher(self.group, self._delays, run.held_ms_max)
        self.answers, self.seed_text = answers, seed
        self.log: LogMessages | None = None

    def fuzz(self, progress: Progress) -> None:
        """Fuzzes for as long as was asked, or until something is wrong."""
        with self.group:
            log = LogMessages(self.order, self.seed_text, self.answers, self.watcher)
            self.log = log
            addresses = list(self.group.addresses.values())
            with self.honest.running(addresses, self.run.seed, HONEST_CLIENTS):
                self.watcher.start()
                try:
                    asyncio.run(self._fuzz(log, progress, lambda: self.honest.has_ended))
                    self.watcher.wait_all_online()
                finally:
                    self.watcher.stop()
            self.run.problems += self.watcher.problems
            if not self.watcher.problems:
                # The first member has a certification log; the others certify in larger steps.
                self.run.problems += find_problems(self.honest, addresses, historians=1)[1]
        self._count(log)

    async def _fuzz(
        self, log: LogMessages, progress: Progress, has_failed: Callable[[], bool]
    ) -> None:
        stopped = asyncio.Event()
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for work in (self.callers, self.connections, self.frames, self.unread, log):
                group.create_task(work.run(stopped))
            while (elapsed := time.monotonic() - began) < self.run.seconds:
                self._count(log)
                progress(self.run, elapsed)
                if self.watcher.problems or has_failed():
                    break
                await asyncio.sleep(POLL_SECONDS)
            stopped.set()

    def _count(self, log: LogMessages) -> None:
        run, watcher = self.run, self.watcher
        run.statuses, run.cases = self.callers.statuses, self.callers.cases
        run.left_out = self.callers.left_out + log.left_out
        run.connections, run.log_messages = self.connections.counts + self.frames.counts, log.sent
        run.unread, run.commits = self.unread.counts, self.honest.commits
        members = watcher.members.values()
        run.skipped_messages = max(each.skipped_messages for each in members)
        run.came_back = sum(each.came_back for each in members)
        for name, watched in watcher.members.items():
            if watched.resident:
                first, last = (watched.resident[place][1] >> 20 for place in (0, -1))
                run.resident_mib[name] = first, last
            for delay in serving_delays(watcher.delays(name)):
                run.worst_held_ms = max(run.worst_held_ms, held_ms(delay))
                run.worst_late_ms = max(run.worst_late_ms, int(str(delay["late_ms"])))

    def _delays(self, name: str) -> Path:
        return self.folder / f"{name}-delays.jsonl"

    def write_last(self) -> None:
        """Writes the last calls and messages beside the members' logs."""
        self.callers.last_calls.write(self.folder)
        messages = self.log.last_messages if self.log else ()
        lines = "".join(json.dumps([name, each.hex()[:8_192]]) + "\n" for name, each in messages)
        (self.folder / "last-log-messages.jsonl").write_text(lines)
        resident = {name: each.resident for name, each in self.watcher.members.items()}
        (self.folder / "resident-bytes.json").write_text(json.dumps(resident))


def fuzz(run: Run, progress: Progress) -> None:
    """Makes a run on its order, over its transport; its folder stays where it has problems."""
    folder = Path(tempfile.mkdtemp(prefix="groupcert-fuzz-"))
    run.folder = folder
    with ORDERS[run.order](folder / "log") as order:
        fuzzing = _Fuzzing(run, order, folder)
        try:
            fuzzing.fuzz(progress)
        except Exception as error:
            run.problems.append(f"{type(error).__name__}: {error}")
            if not isinstance(error, AssertionError):
                sys.excepthook(type(error), error, error.__traceback__)
        if run.problems:
            fuzzing.write_last()
    if not run.problems:
        shutil.rmtree(folder)


def _access(folder: Path) -> Path:
    """Writes the access list: callers with all rights, none of whom takes the others' share."""
    lines: list[str] = []
    for name, token in (("honest", HONEST), ("fuzzer", FUZZING), ("member", MEMBER)):
        digest = hashlib.sha256(token.encode()).hexdigest()
        lines += ["[[principal]]", f'name = "{name}"', f'token_sha256 = "{digest}"']
        lines.append(f"roles = {json.dumps(list(Role))}")
    path = folder / "access.toml"
    path.write_text("\n".join(lines) + "\n")
    return path
