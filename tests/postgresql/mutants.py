"""Members that are wrong on purpose.

They certify each transaction as if its snapshot were the newest state of the server: it conflicts
with nothing that it has not seen, and updates are lost.
"""

from groupcert.members.postgresql.backends import Backend, Request
from groupcert.members.postgresql.server_applier import ServerApplier
from tests.laboratory.mutants import mutant

_serve = ServerApplier._serve


async def with_the_newest_snapshot(self: ServerApplier, backend: Backend, request: Request) -> None:
    """Serves a transaction that claims to have seen everything."""
    await _serve(self, backend, request._replace(version=self._order.version))


MUTANTS = {
    "with-the-newest-snapshot": mutant(ServerApplier, "_serve", with_the_newest_snapshot),
}
