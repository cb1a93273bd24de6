"""Makes companions wrong on purpose: Python imports this before anything else.

They certify each transaction as if its snapshot were the newest state of the server: it conflicts
with nothing that it has not seen, and updates are lost.
"""

from groupcert.members.postgresql.backends import Backend, Request
from groupcert.members.postgresql.companion import Companion

_serve = Companion._serve


async def with_the_newest_snapshot(self: Companion, backend: Backend, request: Request) -> None:
    """Serves a transaction that claims to have seen everything."""
    await _serve(self, backend, request._replace(version=self._order.version))


Companion._serve = with_the_newest_snapshot  # type: ignore[method-assign]  # on purpose
