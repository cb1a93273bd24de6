"""A server whose disk is full: a small one, really full."""

import asyncio
import os
from functools import partial
from pathlib import Path

import psycopg
import pytest

from groupcert.certifier.records import Verdict
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.server import RowsServer
from groupcert.members.postgresql.server_applier import ServerApplier
from groupcert.members.wire.row_changes import encode_changes
from tests import servers
from tests.members.process.test_lifecycle import living
from tests.sim.memory_order import MemoryLog
from tests.small_disk import fill, make_room, small_disk
from tests.waiting import until

pytestmark = pytest.mark.database
ROWS = range(1, 401)
"""Of 2 KB that nothing compresses: more than the server has room for in files that it has."""


def inserted(number: int) -> LoggedTransaction:
    """A transaction of another member that inserts a row."""
    key, note = b"public.things/%d" % number, os.urandom(1_000).hex().encode()
    payload = encode_changes([key], [b'{"id": "%d", "note": "%s"}' % (number, note)])
    return LoggedTransaction(number.to_bytes(16), 0, [number], payload=payload)


def write_behind(dsn: str) -> None:
    """A client that sees all rows, and commits one."""
    with psycopg.connect(dsn) as session:
        assert session.execute("SELECT count(*) FROM things").fetchone() == (len(ROWS),)
        session.execute("INSERT INTO things VALUES (0)")


async def test_a_server_without_room_is_read_only_until_it_has_executed_what_it_lacks(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 160) as disk, servers.where_installed():
        disk.chmod(0o755)
        with servers.PostgreSqlServer(disk / "server") as server:
            with psycopg.connect(server.dsn) as session:
                session.execute("CREATE TABLE things (id int PRIMARY KEY, note text)")
            attach(server.dsn, ["public.*"], set_isolation=True)
            open_server = partial(RowsServer.open, server.dsn)
            settings = {"postgresql": server.dsn}
            async with living(tmp_path / "m1", MemoryLog("g"), open_server, **settings) as process:

                def standing() -> str:
                    rows = process.runtime.rows
                    assert isinstance(rows, ServerApplier)
                    return rows.server_status().out_of_group

                await process.online()
                await until(lambda: not standing())
                fill(disk)
                sent = process.runtime.submit([inserted(number) for number in ROWS])
                await until(lambda: "has gone (could not extend file" in standing())
                assert {each.verdict for each in (await sent).outcomes if each} == {
                    Verdict.CERTIFIED
                }
                assert process.runtime.committed_version < len(ROWS)
                make_room(disk)
                await until(lambda: process.runtime.committed_version == len(ROWS))
                await until(lambda: not standing())
                await asyncio.to_thread(write_behind, server.dsn)
