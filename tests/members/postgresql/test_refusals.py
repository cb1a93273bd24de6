"""What a client of a server gets whose transaction the group does not let commit."""

import asyncio
from functools import partial
from pathlib import Path

import psycopg
import pytest

from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.server import RowsServer
from groupcert.members.postgresql.server_applier import ServerApplier
from tests.members.process.test_lifecycle import living
from tests.sim.memory_order import MemoryLog
from tests.waiting import until

CAUSE = "insufficient resources (10023)"


async def test_a_commit_while_the_log_has_no_space_is_refused_counted_and_may_come_later(
    postgresql_dsn: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgresql_dsn) as session:
        session.execute("CREATE TABLE things (id int PRIMARY KEY)")
    attach(postgresql_dsn, ["public.*"], set_isolation=True)

    def put(number: int) -> None:
        with psycopg.connect(postgresql_dsn) as session:
            session.execute("INSERT INTO things VALUES (%s)", (number,))

    log, open_server = MemoryLog("g"), partial(RowsServer.open, postgresql_dsn)
    async with living(tmp_path, log, open_server, postgresql=postgresql_dsn) as process:
        await process.online()
        rows = process.runtime.rows
        assert isinstance(rows, ServerApplier)
        await until(lambda: not rows.server_status().out_of_group)
        await asyncio.to_thread(put, 1)
        log.full = CAUSE
        waiting = process.runtime.submit(())  # What is sent finds that there is no space.
        await until(lambda: process.runtime.member.publisher.log_full)
        with pytest.raises(psycopg.errors.DiskFull) as refused:
            await asyncio.to_thread(put, 2)
        assert CAUSE in (refused.value.diag.message_detail or "")
        assert rows.server_status().refused_transactions["53100"] == 1
        log.full = ""
        await waiting
        await until(lambda: not process.runtime.member.publisher.log_full)
        await asyncio.to_thread(put, 2)
    with psycopg.connect(postgresql_dsn) as session:
        assert session.execute("SELECT id FROM things ORDER BY id").fetchall() == [(1,), (2,)]
