"""A PostgreSQL server that keeps a member's rows, from the start of one run to its end."""

import asyncio
from contextlib import suppress
from typing import Self

import psycopg

from ...certifier.errors import GroupcertError
from ...certifier.gtid_set import GtidSet
from ..errors.postgresql_servers import ServerLost
from .database import Database
from .standing import Standing

LEFT = "its member was stopped"
LEAVE_SECONDS = 3.0
"""For a server that stands still: the backend of the guard tells it later."""


class Server:
    """A server between two of its crashes: the sessions at it, and what it has executed so far."""

    def __init__(
        self, database: Database, gtid_executed: GtidSet, version: int, position: int
    ) -> None:
        self.database = database
        self.standing = Standing(database)
        self.gtid_executed = gtid_executed
        self.version = version
        self.position = position

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
                opened = cls(database, *await database.executed())
            except GroupcertError as error:
                await Standing(database).leave(str(error))
                raise
            # What an earlier run has let commit may not be on disk; then fragments of it may go.
            await database.flushed()
            return opened
        except psycopg.OperationalError as error:
            await database.close()
            raise lost(database, error) from error
        except BaseException:
            await database.close()
            raise

    async def close(self, reason: str) -> None:
        """Leaves the server read-only, with the reason, and ends the sessions."""
        with suppress(psycopg.Error, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self.standing.leave(reason or LEFT)
        await self.database.close()


def lost(database: Database, error: Exception) -> ServerLost:
    """Returns the error for a server that does not answer any more."""
    return ServerLost(server=database.name, cause=str(error).strip().replace("\n", " "))
