"""A PostgreSQL server that keeps a member's rows, from the start of one run to its end."""

import asyncio
from contextlib import suppress
from typing import Self

import psycopg

from ...applier.queue.target_progress import Checkpoint
from ...certifier.errors import GroupcertError
from ..large_transactions.fragment_store import FragmentStore
from ..runtime.runtime import MemberRuntime
from .database import LEAVE_SECONDS, Database
from .server_applier import ServerApplier
from .standing import Standing

LEFT = "its member was stopped"


class RowsServer:
    """A server between two of its crashes: the sessions at it, and what it has executed so far."""

    def __init__(self, database: Database, executed: Checkpoint) -> None:
        self._database = database
        self._standing = Standing(database)
        self._executed = executed
        self._applier: ServerApplier | None = None

    @classmethod
    async def open(cls, dsn: str) -> Self:
        """Connects to a server that is attached.

        Raises:
            UnsuitableTarget: It is not, or another member serves it.
            ServerLost: It does not answer.
        """
        database = Database(dsn)
        try:
            await database.open()
            try:
                opened = cls(database, await database.executed())
            except GroupcertError as error:
                await Standing(database).leave(str(error))
                raise
            # What an earlier run has let commit may not be on disk; then fragments of it may go.
            await database.flushed()
            return opened
        except psycopg.OperationalError as error:
            await database.close()
            raise database.lost(error) from error
        except BaseException:
            await database.close()
            raise

    def rows(self, runtime: MemberRuntime, fragments: FragmentStore) -> ServerApplier:
        """Returns its rows; `fragments` has those of large transactions."""
        self._applier = ServerApplier(
            self._database, self._standing, self._executed, runtime, fragments
        )
        return self._applier

    async def close(self, reason: str) -> None:
        """Waits for the end of what has been stopped, leaves the server read-only, with the reason,
        and ends the sessions.
        """
        if self._applier is not None:
            await self._applier.ended()
        with suppress(psycopg.Error, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._standing.leave(reason or LEFT)
        await self._database.close()
