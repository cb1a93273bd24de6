"""Whether a server is in its group; while it is not, its database is read-only and says why.

Without this a client writes all day, and is refused at COMMIT. The database's default reaches new
sessions alone; older ones are refused at their COMMIT, by the trigger. Sessions that began while
the server was out are ended when it is back, each once it is idle. Server and log are told what
changes alone, so that `leave` and `serve` may be called some times a second.
"""

import structlog

from .database import Database

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Standing:
    """The server's standing; `reason`: why it is out of its group, "" if in it."""

    def __init__(self, database: Database) -> None:
        """Knows nothing yet: an earlier member may have left the server read-only."""
        self._database = database
        self._logged: str | None = None
        self.reason = ""

    async def leave(self, reason: str, *, keeps_reason: bool = False) -> None:
        """Has the server be read-only, and say why, until `serve`. `keeps_reason`: one that it
        says already, of an earlier run perhaps, tells more.
        """
        self.reason = self.reason or reason
        query = "SELECT groupcert.leave_group(%s, %s)"
        ((self.reason,),) = await self._database.run(query, (reason, keeps_reason))
        if self.reason != self._logged:
            log.warning("server_is_read_only", text=self.reason)
            self._logged = self.reason

    async def serve(self) -> None:
        """Has the server take writes, as before; call it again and again, some times a second."""
        await self._database.run("SELECT groupcert.enter_group()")
        self.reason = ""
        if self._logged != "":
            log.info("server_takes_writes")
            self._logged = ""
