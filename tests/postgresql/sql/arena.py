"""A group of three servers in which one case after the other is run, each in schemas of its own.

The rule it keeps: what a case was wrong with is not there for the next one. Its schemas are
dropped; where that cannot be, a member has ended, or somebody has rights that he had not before,
everything is started anew.
"""

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import psycopg

from groupcert.certifier.errors import GroupcertError
from groupcert.members.demo.postgresql_servers import Primary
from groupcert.members.postgresql.attachment import Attachment, attach
from groupcert.members.postgresql.sequences import Numbering
from groupcert.members.postgresql.status import ask_member
from tests.postgresql.group import Group, running_group
from tests.postgresql.sql.case import CLIENTS, MARKS, OWNERS, ROLES, Case
from tests.postgresql.sql.clients import Told, clients_of
from tests.postgresql.sql.judgement import Problem, compare_rows, find_orphans, read_rights
from tests.postgresql.sql.literals import quoted

SETTLE_SECONDS = 30.0
"""Within which all servers execute everything; they take some hundredths, where they have half a
processor.
"""
BETWEEN_SECONDS = 2.0
PROBE_MS = 4_000
"""For which a statement of the superuser's sessions may wait."""
POLL_SECONDS = 0.01
NUMBERS_APART = 4
AT_ANY_SERVER = (
    "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off"
)
"""What an earlier case has left may keep the server read-only until members are renewed."""
STOPPED = (" cannot execute ", " failed at ")
"""In the reason of a server whose member has stopped before a transaction."""
PROBE = "UPDATE public.probes SET id = id WHERE id = 1"
ROLES_MADE = "; ".join(
    (
        *(f"CREATE ROLE {quoted(role)} LOGIN" for role in ROLES),
        f"GRANT {quoted(OWNERS[0])} TO {CLIENTS[1]}",
    )
)
Result = TypeVar("Result")
Connection = psycopg.Connection[Any]


class Outcome(NamedTuple):
    """What became of a case."""

    problems: list[Problem]
    told: Told
    attached: list[str]
    kept_out: dict[str, str]
    left_out: int = 0
    """Definitions that failed, at all servers alike."""


class Arena:
    """The group, from the first case on; `started_count` says how often it was started."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._group: Group | None = None
        self._sessions: list[Connection] = []
        self._folder = Path()
        self._rights: list[set[str]] = []
        self.started_count = 0
        self.last_failures: list[str] = []
        """Definitions that failed, of the last case."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()

    def run(self, case: Case) -> Outcome:
        """Runs a case and judges what it has left."""
        if self._group is None:
            self._start()
        outcome = self._run(case)
        if self._ended() or not self._is_as_before():
            self.stop()
        return outcome

    def stop(self) -> None:
        """Stops the group; the next case starts another one."""
        self._sessions = []
        self._group = None
        self._running.close()

    @property
    def _primaries(self) -> Sequence[Primary]:
        assert self._group is not None, "not started"
        return self._group.primaries

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="groupcert-sql-"))
        self._running.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._group = self._running.enter_context(running_group(self._folder, ROLES_MADE))
        self.started_count += 1
        for primary in self._primaries:
            session = psycopg.connect(primary.dsn, autocommit=True)
            session.execute(f"SET statement_timeout = {PROBE_MS}".encode())
            self._sessions.append(self._running.enter_context(session))
        self._rights = self._each(read_rights)

    def _run(self, case: Case) -> Outcome:
        left_out = self._define(case)
        attachments, problems = self._attach(case)
        told = Told()
        if problems:
            return Outcome(problems, told, [], {}, left_out)
        rights = self._each(read_rights)
        dsns = [primary.dsn for primary in self._primaries]
        with clients_of(case.sessions, dsns, told) as clients:
            for step in case.steps:
                if step.kind == "settle":
                    self._wait_until_level(BETWEEN_SECONDS)
                else:
                    clients[step.session].run(step)
                if self._ended():
                    break
        problems += self._settle()
        attached = attachments[0].attached
        if not problems:
            problems += compare_rows(self._sessions, attached)
            problems += find_orphans(self._sessions[0], attached)
            problems += self._compare_marks(case, told)
        for before, after in zip(rights, self._each(read_rights), strict=True):
            if grown := sorted(after - before):
                problems.append(Problem("rights grew", "; ".join(grown)))
        problems += [Problem(f"a client is told {masked(text)}", text) for text in told.strange]
        return Outcome(problems, told, attached, attachments[0].kept_out, left_out)

    def _each(self, work: Callable[[Connection], Result]) -> list[Result]:
        """Returns what work at the superuser's session of each server returns."""
        with ThreadPoolExecutor(len(self._sessions)) as pool:
            return [*pool.map(work, self._sessions)]

    def _define(self, case: Case) -> int:
        """Makes what a case has at each server; returns how many definitions failed."""

        def define(primary: Primary) -> list[str]:
            answers = []
            with ExitStack() as stack:
                sessions: dict[str, Connection] = {}
                for role, sql in (*case.preamble, *case.definitions):
                    if role not in sessions:
                        session = psycopg.connect(primary.dsn, user=role, autocommit=True)
                        session.execute(AT_ANY_SERVER.encode())
                        sessions[role] = stack.enter_context(session)
                    try:
                        sessions[role].execute(sql.encode())
                        answers.append("")
                    except psycopg.Error as error:
                        answers.append(f"{error.sqlstate} {error}: {sql}")
            return answers

        with ThreadPoolExecutor(len(self._primaries)) as pool:
            first, *others = pool.map(define, self._primaries)
        self.last_failures = [answer for answer in first if answer]
        for other in others:
            # The hash of an enum's label, so the partition that a message names, is a server's own.
            answers = zip(map(masked, first), map(masked, other), strict=True)
            different = [pair for pair in answers if pair[0] != pair[1]]
            assert not different, f"drawn definitions that are not alike: {different}"
        return len(self.last_failures)

    def _attach(self, case: Case) -> tuple[list[Attachment], list[Problem]]:
        """Attaches a case's tables at all servers, numbered apart."""

        def attach_at(place: int) -> Attachment:
            numbering = Numbering(place, NUMBERS_APART)
            dsn = self._primaries[place - 1].dsn
            return attach(dsn, case.patterns, set_isolation=True, numbering=numbering)

        places = range(1, len(self._primaries) + 1)
        try:
            with ThreadPoolExecutor(len(places)) as pool:
                attachments = [*pool.map(attach_at, places)]
        except Exception as error:
            cause = masked(f"{type(error).__name__}: {error}")
            return [], [Problem(f"attach raises: {cause}", str(error))]
        if any(other.attached != attachments[0].attached for other in attachments):
            return [], [Problem("attach differs", f"{[each.attached for each in attachments]}")]
        return attachments, []

    def _settle(self) -> list[Problem]:
        """Returns when all have executed everything and taken a commit each, or why they do not."""
        self._roll_back_prepared()
        deadline = time.monotonic() + SETTLE_SECONDS
        for place, session in enumerate(self._sessions):
            while True:
                if problems := self._ended():
                    return problems
                try:
                    session.execute(PROBE)
                    break
                except psycopg.Error as error:
                    if time.monotonic() > deadline:
                        last = self._last_line(place, "text")
                        text = f"{last}; {self._waits()}; {error}"
                        return [Problem(f"takes no commits: {masked(last)}", text)]
                time.sleep(POLL_SECONDS)
        if self._wait_until_level(max(1.0, deadline - time.monotonic())):
            return []
        lines = [self._last_line(place, "text") for place in range(len(self._sessions))]
        text = f"{lines}; {self._waits()}"
        return self._ended() or [Problem(f"does not settle: {masked(max(lines))}", text)]

    def _waits(self) -> list[str]:
        """Returns what each server waits for."""
        waits = []
        for primary in self._primaries:
            try:
                status = ask_member(primary.dsn)
                waits.append(f"{status.version} waits for {status.waits_for or 'nothing'}")
            except GroupcertError as error:
                waits.append(str(error))
        return waits

    def _wait_until_level(self, seconds: float) -> bool:
        """Returns whether all servers have the newest version within so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._ended():
            versions = {self._version(session) for session in self._sessions}
            if len(versions) == 1:
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _version(self, session: Connection) -> object:
        return session.execute("SELECT max(version) FROM groupcert.executed").fetchone()

    def _ended(self) -> list[Problem]:
        """Returns the members that have ended, or that cannot go on at their server, with the
        reason.
        """
        for place, primary in enumerate(self._primaries):
            if not primary.member.is_running:
                line = self._last_line(place)
                return [Problem(f"member ended: {masked(line)}", line)]
            with suppress(psycopg.Error):
                ((reason,),) = primary.query("SELECT out_of_group FROM groupcert.settings")
                if reason and any(word in reason for word in STOPPED):
                    return [Problem(f"member stopped: {masked(reason)}", reason)]
        return []

    def _last_line(self, place: int, word: str = "") -> str:
        name = self._primaries[place].name
        text = (self._folder / "group" / f"{name}.log").read_text(errors="replace")
        lines = [line for line in text.splitlines() if word in line] or [""]
        with suppress(ValueError, KeyError):
            return str(json.loads(lines[-1])["text"])
        return lines[-1]

    def _roll_back_prepared(self) -> None:
        for session in self._sessions:
            for (name,) in session.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                with suppress(psycopg.Error):
                    session.execute(f"ROLLBACK PREPARED '{name}'".encode())

    def _compare_marks(self, case: Case, told: Told) -> list[Problem]:
        """Returns acknowledged transactions that a server lacks, and failed ones that it has."""
        problems = []
        query = f"SELECT id FROM {quoted(case.schemas[0])}.{MARKS}".encode()
        for place, session in enumerate(self._sessions, 1):
            try:
                there = {mark for (mark,) in session.execute(query)}
            except psycopg.Error:
                return []  # Another schema now; rows were compared.
            for mark, who in told.acknowledged.items():
                if mark not in there:
                    text = f"mark {mark} of {who} at server {place}"
                    problems.append(Problem("an acknowledged transaction is missing", text))
            problems += [
                Problem("a failed transaction is there", f"mark {mark} at server {place}: {why}")
                for mark, why in told.absent.items()
                if mark in there and mark not in told.acknowledged
            ]
        return problems

    def _is_as_before(self) -> bool:
        """Drops what the case has made; returns whether nothing else is left of it."""

        def drop(session: Connection) -> None:
            session.execute("SET session_replication_role = replica; SET lock_timeout = '3s'")
            for (schema,) in session.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname ~ '^(case|other)_'"
            ).fetchall():
                session.execute(f"DROP SCHEMA {quoted(schema)} CASCADE".encode())
            for (function,) in session.execute(
                "SELECT oid::regprocedure::text FROM pg_proc WHERE proname ~ ' (case|other)_'"
            ).fetchall():
                session.execute(f"DROP FUNCTION {function}".encode())
            session.execute("RESET session_replication_role; RESET lock_timeout")

        try:
            self._each(drop)
            return self._each(read_rights) == self._rights
        except psycopg.Error:
            return False


def masked(text: str) -> str:
    """Returns a message without what is drawn: problems of one cause have one text."""
    text = re.sub(r'\\?"(?:[^"\\]|\\.)*"|\'[^\']*\'|\d+|\b[0-9a-f-]{32,}\b', "_", text)
    return re.sub(r"\s+", " ", text)[:160]
