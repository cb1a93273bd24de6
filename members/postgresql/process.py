"""Runs `groupcert postgresql` as a process, and begins again when its server or its member comes
back.
"""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import psycopg
import structlog
import uvloop

from groupcert.applier.errors import ApplyFailed, PurgedAtSource, ReplicaAhead
from groupcert.certifier.errors import Fenced, GroupcertError, Unavailable
from groupcert.members.client.async_client import AsyncClient
from groupcert.members.errors.postgresql import CopyNeeded, SchemaChangeFailed
from groupcert.members.postgresql.companion import Companion
from groupcert.members.postgresql.database import Database
from groupcert.members.postgresql.log_follower import LogFollower
from groupcert.members.postgresql.standing import Standing
from groupcert.members.security.credentials import ANONYMOUS, Credentials

PAUSE_SECONDS = 0.5
ANSWER_MS = 8_000
"""Milliseconds for which no member may answer before the server is read-only: an election of the
log's leader takes less."""
ENDS = (ApplyFailed, ReplicaAhead, SchemaChangeFailed)
"""What does not pass by itself."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def run_companion(dsn: str, addresses: Sequence[str], credentials: Credentials = ANONYMOUS) -> int:
    """Runs a companion until SIGTERM or SIGINT; returns the exit code.

    Raises:
        GroupcertError: It cannot serve the server; nothing is lost.
    """
    uvloop.run(_run_until_signal(dsn, addresses, credentials))
    return 0


async def _run_until_signal(dsn: str, addresses: Sequence[str], credentials: Credentials) -> None:
    task = asyncio.create_task(_run(dsn, addresses, credentials))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def _run(dsn: str, addresses: Sequence[str], credentials: Credentials) -> None:
    while True:
        database = Database(dsn)
        try:
            await database.open()
            await _serve(database, addresses, credentials)
        except psycopg.OperationalError as error:
            log.warning("companion_begins_again", text=str(error).strip())
        finally:
            await database.close()
        await asyncio.sleep(PAUSE_SECONDS)


async def _serve(database: Database, addresses: Sequence[str], credentials: Credentials) -> None:
    """Runs the companion once; the server is read-only when it ends. Returns if it may be served
    again: members may come back, or be mended.

    Raises:
        GroupcertError: Its operator has to act before.
    """
    standing = Standing(database)
    executed, version = await database.executed()
    client = partial(AsyncClient, addresses, tls=credentials.tls, token=credentials.token)
    follower = LogFollower(addresses, credentials, executed)
    try:
        async with client() as certifier, client(timeout_ms=ANSWER_MS) as watch:
            companion = Companion(database, standing, certifier, watch, follower, version)
            await companion.run()
    except asyncio.CancelledError:
        with suppress(psycopg.Error):
            await standing.leave("its companion was stopped")
        raise
    except PurgedAtSource as error:
        needed = CopyNeeded(source=error.source, missing=error.missing, server=database.name)
        await standing.leave(str(needed))
        raise needed from error
    except GroupcertError as error:
        await standing.leave(str(error))
        if isinstance(error, ENDS) or not isinstance(error, Unavailable | Fenced):
            raise
        log.warning("companion_begins_again", text=str(error))
