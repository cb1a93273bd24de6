"""Three PostgreSQL servers of one group, for programs that know nothing of it.

A program has one server, or all three. It makes its tables itself, at its server alone; then
`spread` copies the database to the others and attaches all three, or `change` makes tables by
`groupcert postgresql ddl`.
"""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from groupcert.certifier.errors import GroupcertError
from groupcert.members.client.client import Client
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.demo.postgresql_servers import GroupAtServers, Primary
from groupcert.members.errors.postgresql_servers import SchemaChangeRefused
from groupcert.members.postgresql import ddl
from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.sequences import Numbering
from tests import servers

DATABASE = "foreign_programs"
NAMES = ("m1", "m2", "m3")
PATTERNS = ("public.*", "test_schema*.*", "foreign_probe.*")
DDL_SECONDS = 30.0
SETTLE_SECONDS = 60.0
PROBE = (
    "CREATE SCHEMA foreign_probe;"
    " CREATE TABLE foreign_probe.probe (id int PRIMARY KEY, count int NOT NULL);"
    " INSERT INTO foreign_probe.probe VALUES (1, 0)"
)
"""A table is always there to be attached, whatever a program drops."""
VERSION = "SELECT coalesce(max(version), 0) FROM groupcert.executed"
TABLES = """
SELECT format('%I.%I', n.nspname, c.relname)
FROM groupcert.attached a JOIN pg_class c ON c.oid = a.relation
JOIN pg_namespace n ON n.oid = c.relnamespace"""
ROWS = """
SELECT name, CAST(((xpath('/row/rows/text()', query_to_xml(format(
    'SELECT md5(string_agg(t::text, E''\\n'' ORDER BY t::text)) AS rows FROM %%s t', name),
    false, true, '')))[1]) AS text)
FROM unnest(%s::text[]) name WHERE pg_relation_size(name::regclass) > 0"""
"""A digest of the rows of each table that ever had some; NULL: it has none."""


class ForeignGroup:
    """Servers, of which one database each is attached at a time, and the members for it."""

    members: LocalGroup

    def __init__(self, folder: Path, dsns: Sequence[str]) -> None:
        self.database = ""
        self.kept_out: dict[str, str] = {}
        """Tables that are each server's own, with the reason."""
        self.changes: dict[str, int] = {}
        """How often schema changes were executed, or why they were refused."""
        self.compared = 0
        self._folder = folder
        self._servers = [*dsns]
        self._primaries: list[Primary] = []
        self._sessions: list[psycopg.Connection[Any]] = []
        self._compared_version = -1
        self._tables: list[str] = []

    @property
    def dsns(self) -> list[str]:
        """The attached database at each server."""
        name = self.database or "postgres"
        return [f"{dsn.rpartition('/')[0]}/{name}" for dsn in self._servers]

    def make(self, database: str, *statements: str) -> str:
        """Makes a database at the first server and runs statements there; returns where it is."""
        self.database = database
        with closing(psycopg.connect(self._servers[0], autocommit=True)) as session:
            session.execute(f'CREATE DATABASE "{database}"'.encode())
        with closing(psycopg.connect(self.dsns[0], autocommit=True)) as session:
            for statement in statements:
                session.execute(statement.encode())
        return self.dsns[0]

    def spread(self, database: str, *, numbered: bool = False) -> dict[str, str]:
        """Copies a database of the first server to the others, attaches all three and starts their
        members; returns the tables that are kept out, with the reason.
        """
        self.database = database
        first, *others = self.dsns
        with psycopg.connect(first) as session:
            session.execute(PROBE.encode())
        programs = [str(servers.postgresql_program(name)) for name in ("pg_dump", "psql")]
        dumped = subprocess.run([programs[0], first], capture_output=True, check=True).stdout
        for server, dsn in zip(self._servers[1:], others, strict=True):
            with closing(psycopg.connect(server, autocommit=True)) as session:
                session.execute(f'CREATE DATABASE "{database}"'.encode())
            command = [programs[1], "-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", dsn]
            subprocess.run(command, input=dumped, check=True)

        def attached(place: int, dsn: str) -> Mapping[str, str]:
            numbering = Numbering(place, len(self.dsns)) if numbered else None
            return attach(dsn, PATTERNS, set_isolation=True, numbering=numbering).kept_out

        with ThreadPoolExecutor(len(self.dsns)) as pool:
            for kept_out in pool.map(attached, range(1, len(self.dsns) + 1), self.dsns):
                self.kept_out.update(kept_out)
        self._primaries = [
            Primary(name, self._folder, dsn=dsn) for name, dsn in zip(NAMES, self.dsns, strict=True)
        ]
        self.members = GroupAtServers(self._primaries, self._folder / "group")
        self.members.start()
        self._look_at_tables()
        return self.kept_out

    def change(self, statements: str, rewrite: bool = False) -> str:
        """Changes the schema of all servers, attaches new tables if they fit; returns why it was
        refused, or "".
        """
        for attaches in (True, False):
            try:
                self._change(statements, attaches=attaches, rewrite=rewrite)
            except SchemaChangeRefused as error:
                problem = error.problem
                if "it leaves" not in problem:
                    break
                self.kept_out[problem.split()[2]] = problem
            except GroupcertError as error:
                problem = str(error)
                break
            else:
                self._count("executed" if attaches else "executed, tables kept out")
                self._look_at_tables()
                return ""
        self._count(problem.partition(";")[0])
        return problem

    def differences(self) -> list[str]:
        """Returns the attached tables whose rows are not the same everywhere, once every server has
        executed what the first one has; and members that have ended.
        """
        ended = [
            f"member {each.name}: {each.member.how_it_ended()}"
            for each in self._primaries
            if not each.member.is_running
        ]
        if ended:
            return ended
        if not self._sessions:
            self._sessions = [psycopg.connect(dsn, autocommit=True) for dsn in self.dsns]
        versions = [_rows(each, VERSION)[0][0] for each in self._sessions]
        if max(versions) == self._compared_version:
            return []
        self.compared += 1
        self._compared_version = max(versions)
        deadline = time.monotonic() + SETTLE_SECONDS
        for each in self._sessions:
            while _rows(each, VERSION)[0][0] < max(versions):
                if time.monotonic() > deadline:
                    return [f"{each.info.dsn} has not executed version {max(versions)}"]
                time.sleep(0.005)
        first, *others = (
            {(name, rows) for name, rows in _rows(each, ROWS, self._tables) if rows}
            for each in self._sessions
        )
        return sorted({name for other in others for name, _ in first ^ other})

    def summary(self) -> dict[str, Any]:
        """What is to be known of the group at the end."""
        return {
            "compared": self.compared,
            "versions": query(self.dsns[0], VERSION)[0][0],
            "tables kept out": len(self.kept_out),
            "why kept out": _counted(self.kept_out.values()),
            "schema changes": self.changes,
        }

    def end(self) -> None:
        """Stops the members."""
        for session in self._sessions:
            session.close()
        if self._primaries:
            self.members.stop()

    def _change(self, statements: str, *, attaches: bool, rewrite: bool) -> None:
        dsns = self.dsns
        change = ddl.change_for(dsns[0], statements, attach=attaches, rewrite=rewrite)
        with ThreadPoolExecutor(len(dsns)) as pool:
            newest = [*pool.map(lambda dsn: ddl.try_at(dsn, change), dsns)]
        ddl.approve_at(dsns, change)
        with Client([*self.members.addresses.values()]) as client:
            ddl.certify(dsns, client, change, newest[0])
        missing = ddl.wait_for_servers(dsns, change, seconds=DDL_SECONDS)
        assert not missing, f"not executed: {missing}"

    def _look_at_tables(self) -> None:
        self._tables = [name for (name,) in query(self.dsns[0], TABLES)]

    def _count(self, outcome: str) -> None:
        self.changes[outcome] = self.changes.get(outcome, 0) + 1


def _rows(
    session: "psycopg.Connection[Any]", statement: str, *values: object
) -> list[tuple[Any, ...]]:
    return session.execute(statement.encode(), values or None).fetchall()


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a statement that reads."""
    with closing(psycopg.connect(dsn, autocommit=True)) as session:
        return session.execute(statement.encode()).fetchall()


def _counted(values: Sequence[str] | Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        said = str(value)
        for name in json.dumps(said).split():
            if "." in name and "/" not in name:
                said = said.replace(name.strip('"'), "...")
        counts[said] = counts.get(said, 0) + 1
    return counts


@contextmanager
def foreign_group(folder: Path) -> Iterator[ForeignGroup]:
    """Starts three servers, nothing attached."""
    with ExitStack() as stack:
        dsns = [
            stack.enter_context(servers.PostgreSqlServer(folder / name, "fsync=off")).dsn
            for name in NAMES
        ]
        group = ForeignGroup(folder, dsns)
        stack.callback(group.end)
        yield group
