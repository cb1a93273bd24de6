"""A PostgreSQL server joins a group while a client commits: by a dump, and by a base backup.

`groupcert postgresql join` restores a dump of one snapshot into an empty database; the other way is
PostgreSQL's own copy of the files, `pg_basebackup`, and `attach` at the server that starts on it.
Bounds: the dump reads each table, and makes each index anew; the files are copied with the indexes.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.demo.postgresql_servers import GroupAtServers
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.host.postgresql_server import as_postgres, postgresql_program
from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.join import join
from tests.bench.harness import Document, Load, Run, in_turns, machine, scratch
from tests.integration.postgresql_group import Primary, increments
from tests.integration.waiting import wait_for

JOINER = "m2"
BYTES_A_ROW = 330
"""With its two indexes."""
ACCOUNTS = 40
SCHEMA = f"""
CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO accounts SELECT number, 0 FROM generate_series(1, {ACCOUNTS}) number;
CREATE TABLE entries (id bigint PRIMARY KEY, account int NOT NULL, at timestamptz NOT NULL,
    note text NOT NULL);
"""
FILL = """
INSERT INTO entries
SELECT number, number % 100003 * 7919 % 100000, now(), repeat(md5(number::text), 6)
FROM generate_series(1, {rows}) number;
CREATE INDEX ON entries (account);
"""
JOIN_SECONDS_MAX = 3_600.0


def server_joins(run: Run, gigabytes: tuple[float, ...] = (1.0, 10.0), rounds: int = 1) -> Document:
    """Joins a server to a group of one, by a dump and by a base backup, in turns.

    Args:
        gigabytes: Sizes of the database, indexes included.
        rounds: Turns of both.
    """
    plan = in_turns([Load("pg_dump", _by_dump), Load("pg_basebackup", _by_files)], rounds)
    sizes = {f"{size} GB": run.measure(plan, _running(size)) for size in gigabytes}
    return {"machine": machine(), "sizes": sizes}


@dataclass(frozen=True, slots=True)
class _Running:
    """A server with rows, its member, and the server that joins."""

    group: LocalGroup
    first: Primary
    joiner: Primary


@contextmanager
def _running(gigabytes: float) -> Iterator[_Running]:
    with scratch() as folder, ExitStack() as stack:
        (folder / "group").mkdir()
        first = Primary("m1", folder)
        stack.enter_context(first.server)
        rows = round(gigabytes * 1e9 / BYTES_A_ROW)
        first.attach(SCHEMA + FILL.format(rows=rows))
        group = stack.enter_context(GroupAtServers([first], folder / "group"))
        yield _Running(group, first, Primary(JOINER, folder))


def _by_dump(running: _Running) -> Document:
    """Measures `groupcert postgresql join` into a server that runs."""
    running.joiner.server.start()
    running.joiner.server.wait_ready()
    return _measured(running, {"copy": lambda: join(running.joiner.dsn, running.first.dsn)})


def _by_files(running: _Running) -> Document:
    """Measures `pg_basebackup`, the start on it, and `attach` there."""
    joiner = running.joiner
    home = joiner.server.log.parent
    home.mkdir(exist_ok=True)
    shutil.chown(home, "postgres", "postgres")

    def copy() -> None:
        program = str(postgresql_program("pg_basebackup"))
        flags = ("--checkpoint=fast", "--pgdata", str(home / "postgresql"))
        source = ("--host", HOST, "--port", str(running.first.server.port), "--username=postgres")
        subprocess.run([*as_postgres(), program, *source, *flags], check=True)

    def start() -> None:
        joiner.server.start()
        joiner.server.wait_ready()

    steps = {"copy": copy, "start": start, "attach": lambda: attach(joiner.dsn, ["public.*"])}
    return _measured(running, steps)


def _measured(running: _Running, steps: Mapping[str, Callable[[], object]]) -> Document:
    """Runs steps, then the member; returns the seconds of each, and of all until the server takes
    commits, with the commits of a client at the running server meanwhile.
    """
    group, joiner = running.group, running.joiner
    seconds = {}
    try:
        with increments([running.first], range(2, ACCOUNTS)) as load:
            began = last = time.monotonic()

            def ended(step: str) -> None:
                nonlocal last
                now = time.monotonic()
                seconds[step], last = round(now - last, 2), now

            for name, step in steps.items():
                step()
                ended(name)
            group.addresses[JOINER] = f"{HOST}:{free_port()}"
            group.start_member(JOINER, {"postgresql": joiner.dsn})
            wait_for("it serves", joiner.takes_commits, JOIN_SECONDS_MAX)
            ended("member")
            total = round(time.monotonic() - began, 2)
        wait_for("the same rows", partial(_are_equal, running))
        size = "SELECT pg_database_size(current_database())"
        ((database_bytes,),) = running.first.query(size)
        commits = sum(load.done)
        return {"seconds": total, "steps": seconds, "bytes": database_bytes, "commits": commits}
    finally:
        if JOINER in group.processes:
            group.stop_member(JOINER)
            shutil.rmtree(group.folder / JOINER)
        joiner.server.stop()
        shutil.rmtree(joiner.server.log.parent)


def _are_equal(running: _Running) -> bool:
    query = "SELECT sum(balance), (SELECT max(version) FROM groupcert.executed) FROM accounts"
    return running.first.query(query) == running.joiner.query(query)
