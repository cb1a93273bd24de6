"""Runs `groupcert postgresql` as a process, and begins again when its server or its member comes
back.
"""

import asyncio
import signal
from collections.abc import Sequence

import psycopg
import structlog
import uvloop

from groupcert.applier.errors import PurgedAtSource
from groupcert.certifier.errors import Unavailable
from groupcert.members.client.async_client import AsyncClient
from groupcert.members.errors.postgresql import CopyNeeded
from groupcert.members.postgresql.companion import Companion
from groupcert.members.postgresql.database import Database
from groupcert.members.postgresql.log_follower import LogFollower
from groupcert.members.security.credentials import ANONYMOUS, Credentials

PAUSE_SECONDS = 0.5
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
            executed, version = await database.executed()
            async with AsyncClient(
                addresses, tls=credentials.tls, token=credentials.token
            ) as client:
                follower = LogFollower(addresses, credentials, executed)
                await Companion(database, client, follower, version).run()
        except PurgedAtSource as error:
            raise CopyNeeded(
                source=error.source, missing=error.missing, server=database.name
            ) from error
        except (psycopg.OperationalError, Unavailable) as error:
            log.warning("companion_begins_again", text=str(error).strip())
        finally:
            await database.close()
        await asyncio.sleep(PAUSE_SECONDS)
