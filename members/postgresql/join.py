"""Joins a server to a group: fills an empty database with a copy of a running server's.

A snapshot of a server is a prefix of the total order, and the schema `groupcert` in it has the
GTIDs of just these transactions. So a copy of one snapshot knows by itself where it stands, and its
member goes on there. What is the server's own is not copied: `groupcert.settings`.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg
from psycopg import conninfo

from ...applier.errors import UnsuitableTarget
from ...certifier.errors import InvalidSetting
from .attachment import (
    check_attached,
    check_server,
    has_language,
    make_role,
    opened,
    patterns_of,
    unsuitable,
    write_settings,
)
from .database import JOINING
from .sequences import (
    Numbering,
    number_sequences,
    numbering_of,
    read_sequences,
)

CHUNK_BYTES = 1 << 20
ERROR_CHARACTERS = 2_000
_OWN = ("groupcert.settings", "groupcert.notes")
"""Tables of which the copy has no rows."""
_CONTENT = """
SELECT coalesce(quote_ident(o.name), 'schema') || ' of ' || quote_ident(n.nspname)
FROM pg_namespace n LEFT JOIN (
    SELECT oid, 'pg_class'::regclass AS class, relname AS name, relnamespace AS space FROM pg_class
    UNION ALL SELECT oid, 'pg_proc'::regclass, proname, pronamespace FROM pg_proc
    UNION ALL SELECT oid, 'pg_type'::regclass, typname, typnamespace FROM pg_type
) o ON o.space = n.oid AND NOT EXISTS (
    SELECT FROM pg_depend d WHERE d.classid = o.class AND d.objid = o.oid AND d.deptype = 'e')
WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
  AND (o.oid IS NOT NULL OR n.nspname <> 'public')
LIMIT 1"""
_ROLES = """
SELECT r.rolname FROM pg_shdepend d JOIN pg_roles r ON r.oid = d.refobjid
WHERE d.refclassid = 'pg_authid'::regclass
  AND d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION SELECT rolname FROM pg_roles WHERE oid = 10"""


class Joined(NamedTuple):
    """A copy: the version that it has, the size of the dump, the next numbers of sequences."""

    version: int
    dump_bytes: int
    sequences: Mapping[str, int]


def join(
    dsn: str,
    source_dsn: str,
    *,
    socket: Path | None = None,
    sequence_offset: int | None = None,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> Joined:
    """Copies the database of a running server of a group into an empty one.

    Args:
        dsn: The empty database; of a superuser, as `source_dsn`.
        socket: As for `attach`.
        sequence_offset: The new server's own, where sequences of the running one have theirs.
        show: Is called with the bytes of the dump so far, and the size of the database.

    Raises:
        UnsuitableTarget: The database is not empty, the running server is not attached, pg_dump is
            missing, or the copy failed: then the database is as it was.
        InvalidSetting: The offset is missing, or another server's.
        NotServing: One of the servers does not answer.
    """
    with opened(source_dsn) as source:
        source.execute(f"SET application_name TO '{JOINING}'".encode())
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        check_attached(source, source_dsn, "a running server of the group")
        numbering = _own_numbering(numbering_of(source), sequence_offset)
        with opened(dsn) as target:
            check_server(target, dsn)
            make_role(target)  # The copy has its rights.
            _check_room(target, dsn, source)
            had_language = has_language(target)
        programs = _programs(source, source_dsn)
        dumped = _copy(programs, source, source_dsn, dsn, show)
        ((version,),) = source.execute("SELECT max(version) FROM groupcert.executed").fetchall()
        ((sets_isolation, new_tables),) = source.execute(
            "SELECT sets_isolation, new_tables FROM groupcert.settings"
        ).fetchall()
        patterns = patterns_of(source)
    with opened(dsn) as target:
        write_settings(
            target,
            dsn,
            socket,
            created_language=not had_language,
            set_isolation=sets_isolation,
            patterns=patterns,
        )
        target.execute("UPDATE groupcert.settings SET new_tables = %s", (new_tables,))
        own = [each for each in read_sequences(target) if each.is_numbered]
        given = number_sequences(target, own, numbering) if numbering else {}
    return Joined(version or 0, dumped, given)


def _own_numbering(running: Numbering | None, offset: int | None) -> Numbering | None:
    """Returns the numbering of the new server beside a running one."""
    if running is None:
        if offset is not None:
            expected = "none: sequences of the running server give all numbers"
            raise InvalidSetting(name="--sequence-offset", value=offset, expected=expected)
        return None
    if offset is None or offset == running.offset or not 1 <= offset <= running.increment:
        raise InvalidSetting(
            name="--sequence-offset",
            value="" if offset is None else offset,
            expected=f"the new server's own, 1 to {running.increment}, which no other server has:"
            f" the running one has {running.offset}",
        )
    return Numbering(offset, running.increment)


def _check_room(
    target: "psycopg.Connection[Any]", dsn: str, source: "psycopg.Connection[Any]"
) -> None:
    """Raises UnsuitableTarget unless the database is empty, and of a server that takes the copy."""
    found = target.execute(_CONTENT.encode()).fetchone()
    if found:
        expected = "an empty one: CREATE DATABASE ... TEMPLATE template0"
        raise unsuitable(dsn, f"the database has {found[0]}", expected)
    versions = [each.info.server_version // 10_000 for each in (source, target)]
    if versions[0] > versions[1]:
        problem = f"it is PostgreSQL {versions[1]}"
        raise unsuitable(dsn, problem, f"PostgreSQL {versions[0]} or newer, as the running server")
    roles = {name for (name,) in source.execute(_ROLES).fetchall()}
    roles -= {name for (name,) in target.execute("SELECT rolname FROM pg_roles").fetchall()}
    if roles:
        names = ", ".join(sorted(roles))
        expected = "the running server's: pg_dumpall --roles-only --dbname RUNNING | psql EMPTY"
        raise unsuitable(dsn, f"it has no role {names}", expected)


def _programs(source: "psycopg.Connection[Any]", dsn: str) -> tuple[str, str]:
    """Returns the paths of pg_dump and pg_restore, new enough for the running server."""
    major = source.info.server_version // 10_000
    found = []
    for name in ("pg_dump", "pg_restore"):
        path = shutil.which(name)
        package = f"sudo apt-get install postgresql-client-{major}"
        if path is None:
            raise unsuitable(dsn, f"there is no {name} on this machine", package)
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"\) (\d+)", done.stdout)
        if version is None or int(version[1]) < major:
            given = done.stdout.strip() or done.stderr.strip()
            raise unsuitable(dsn, f"{path} is {given}, and it is PostgreSQL {major}", package)
        found.append(path)
    return found[0], found[1]


def _copy(
    programs: tuple[str, str],
    source: "psycopg.Connection[Any]",
    source_dsn: str,
    dsn: str,
    show: Callable[[int, int], None],
) -> int:
    """Dumps the transaction's snapshot into the database, in one transaction there; returns the
    bytes of the dump.
    """
    ((snapshot, size),) = source.execute(
        "SELECT pg_export_snapshot(), pg_database_size(current_database())"
    ).fetchall()
    without = [f"--exclude-table-data={table}" for table in _OWN]
    dump = [programs[0], "--format=custom", "--compress=0", f"--snapshot={snapshot}", *without]
    restore = [programs[1], "--single-transaction", "--exit-on-error"]
    with (
        _Program(dump, source_dsn, stdout=subprocess.PIPE) as giver,
        _Program(restore, dsn, stdin=subprocess.PIPE) as taker,
    ):
        try:
            done = _pipe(giver, taker, lambda count: show(count, size))
        # pg_restore has ended, and says why below.
        except BrokenPipeError:
            done = 0
            giver.process.kill()
        else:
            if giver.process.wait():
                taker.process.kill()  # It must not take a part for the whole.
                raise giver.failure()
        if taker.process.wait():
            raise taker.failure()
    return done


def _pipe(giver: "_Program", taker: "_Program", show: Callable[[int], None]) -> int:
    """Hands on what a program prints until it ends; returns the bytes."""
    output, given = giver.process.stdout, taker.process.stdin
    assert output is not None and given is not None, "started without pipes"
    done = 0
    while chunk := output.read(CHUNK_BYTES):
        given.write(chunk)
        done += len(chunk)
        show(done)
    # pg_restore commits at the end of its input, so it must see none after a dump that failed.
    if giver.process.wait() == 0:
        given.close()
    return done


class _Program:
    """A client program of PostgreSQL at a server, until the end of the block."""

    def __init__(
        self,
        command: Sequence[str],
        dsn: str,
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
    ) -> None:
        self._name = Path(command[0]).name
        self._dsn = dsn
        self._errors = tempfile.TemporaryFile()
        given = conninfo.conninfo_to_dict(dsn)
        password = given.pop("password", None)
        environment = {**os.environ, "PGAPPNAME": JOINING}
        if password:
            environment["PGPASSWORD"] = str(password)  # Others may read the command line.
        address = f"--dbname={conninfo.make_conninfo('', **given)}"
        self.process = subprocess.Popen(
            [*command, address], env=environment, stdin=stdin, stdout=stdout, stderr=self._errors
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        with suppress(BrokenPipeError):
            self.process.communicate()
        self._errors.close()

    def failure(self) -> UnsuitableTarget:
        """Returns the error that the program has printed, as UnsuitableTarget."""
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        problem = f"{self._name} failed: {text[-ERROR_CHARACTERS:]}"
        return unsuitable(self._dsn, problem, "a copy; the empty database is as it was")
