"""Whether a server is in its group; while it is not, its database is read-only and says why.

Without this a client writes all day, and is refused at COMMIT. The database's default reaches new
sessions alone; older ones are refused at their COMMIT, by the trigger. Sessions that began while
the server was out are ended when it is back, each once it is idle.
"""

import structlog

from .database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Standing:
    """The server's standing, as last told; `reason`: why it is out of its group, "" if in it."""

    def __init__(self, database: Database) -> None:
        """Knows nothing yet: an earlier member may have left the server read-only."""
        self._database = database
        self._was_told = False
        self._has_read_only_sessions = True
        self.reason = ""

    async def leave(self, reason: str, *, keeps_reason: bool = False) -> None:
        """Has the server be read-only, and say why, until `serve`. `keeps_reason`: one that it
        says already, of an earlier run perhaps, tells more.
        """
        if keeps_reason and not self._was_told:
            ((left,),) = await self._database.run("SELECT out_of_group FROM groupcert.settings")
            self.reason, self._was_told = left or "", bool(left)
        if reason != self.reason and not (keeps_reason and self.reason):
            self.reason, self._was_told = reason, True
            log.warning("server_is_read_only", text=reason)
            await self._database.run("SELECT groupcert.leave_group(%s)", [reason])

    def forget(self) -> None:
        """Knows nothing any more: somebody else has told the server to leave."""
        self._was_told = False

    async def serve(self) -> None:
        """Has the server take writes, as before; call it again and again, some times a second."""
        if self.reason or not self._was_told:
            await self._database.run("SELECT groupcert.enter_group()")
            log.info("server_takes_writes")
            self.reason, self._was_told = "", True
            self._has_read_only_sessions = True
        if self._has_read_only_sessions:
            ((busy,),) = await self._database.run("SELECT groupcert.end_read_only_sessions()")
            self._has_read_only_sessions = busy > 0
