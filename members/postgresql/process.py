"""Runs `groupcert postgresql` as a process, and begins again when its server or its member comes
back.
"""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial

import psycopg
import structlog
import uvloop

from groupcert.v1.companion_pb2 import CompanionStatus

from ...applier.errors import PurgedAtSource, ReplicaAhead
from ...certifier.errors import Fenced, GroupcertError, Unavailable
from ...certifier.gtid_set import GtidSet
from ..client.async_client import AsyncClient
from ..console.paths import serve_metrics
from ..errors.postgresql_servers import CopyNeeded, RowsNotExecuted, SchemaChangeFailed
from ..errors.transactions import MemberFailed
from ..security.credentials import ANONYMOUS, Credentials
from ..services.metrics import StatusCollector
from .companion import Companion
from .database import TURN_SECONDS, Database
from .log_follower import LogFollower
from .standing import Standing

PAUSE_SECONDS = 0.5
ANSWER_MS = 8_000
"""Milliseconds for which no member may answer before the server is read-only: an election of the
log's leader takes less."""
ENDS = (RowsNotExecuted, SchemaChangeFailed)
"""Errors that do not pass by themselves."""
PASSES = (Unavailable, Fenced, MemberFailed)
"""Errors that may: a member that fails over one call, as when it is killed, comes back."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def run_companion(
    dsn: str,
    addresses: Sequence[str],
    credentials: Credentials = ANONYMOUS,
    metrics_address: str | None = None,
    turn_seconds: float = TURN_SECONDS,
) -> int:
    """Runs a companion until SIGTERM or SIGINT; returns the exit code.

    Args:
        metrics_address: Where it serves its metrics, `host:port`; None: nowhere.
        turn_seconds: For which a backend may hold up the commits of its server.

    Raises:
        GroupcertError: It cannot serve the server; nothing is lost.
    """
    process = _Process(dsn, addresses, credentials, turn_seconds)
    with ExitStack() as stack:
        if metrics_address:
            collector = StatusCollector(process.status)
            stack.callback(serve_metrics(metrics_address, collector))
        uvloop.run(_run_until_signal(process))
    return 0


async def _run_until_signal(process: "_Process") -> None:
    task = asyncio.create_task(process.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def passes(error: GroupcertError) -> bool:
    """Returns whether a companion begins again after an error, without its operator."""
    return isinstance(error, PASSES) and not isinstance(error, ENDS)


class _Process:
    """One companion after the other, at the same server."""

    def __init__(
        self, dsn: str, addresses: Sequence[str], credentials: Credentials, turn_seconds: float
    ) -> None:
        self._dsn = dsn
        self._turn_seconds = turn_seconds
        self._addresses = addresses
        self._credentials = credentials
        self._companion: Companion | None = None

    def status(self) -> CompanionStatus | None:
        """Returns the companion's status; None while there is none."""
        return self._companion.status() if self._companion else None

    async def run(self) -> None:
        """Serves until an error for its operator, or until it is cancelled."""
        while True:
            database = Database(self._dsn, self._turn_seconds)
            try:
                await database.open()
                await self._serve(database)
            except psycopg.OperationalError as error:
                log.warning("companion_begins_again", text=str(error).strip())
            finally:
                self._companion = None
                await database.close()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _serve(self, database: Database) -> None:
        """Runs the companion once; the server is read-only when it ends. Returns if it may be
        served again: members may come back, or be mended.

        Raises:
            GroupcertError: Its operator has to act before.
        """
        standing = Standing(database)
        tls, token = self._credentials.tls, self._credentials.token
        client = partial(AsyncClient, self._addresses, tls=tls, token=token)
        try:
            executed, version = await database.executed()
            follower = LogFollower(self._addresses, self._credentials, executed)
            async with client() as certifier, client(timeout_ms=ANSWER_MS) as watch:
                await _check_group(watch, executed)
                self._companion = Companion(database, standing, certifier, watch, follower, version)
                await self._companion.run()
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
            if not passes(error):
                raise
            log.warning("companion_begins_again", text=str(error))


async def _check_group(client: AsyncClient, executed: GtidSet) -> None:
    """Raises ReplicaAhead if a server has transactions of a source of which its member has none: it
    was a server of another group, whose versions mean something else.
    """
    known = GtidSet.parse((await client.status()).observer.gtid_executed).sources()
    foreign = [source for source in executed.sources() if source not in known]
    if foreign:
        raise ReplicaAhead(source=client.address, extra=", ".join(foreign))
