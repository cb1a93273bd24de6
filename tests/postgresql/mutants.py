"""Companions that are wrong on purpose.

They certify each transaction as if its snapshot were the newest state of the server: it conflicts
with nothing that it has not seen, and updates are lost.
"""

from groupcert.members.postgresql.backends import Backend, Request
from groupcert.members.postgresql.companion import Companion
from tests.laboratory.mutants import mutant

_serve = Companion._serve


async def with_the_newest_snapshot(self: Companion, backend: Backend, request: Request) -> None:
    """Serves a transaction that claims to have seen everything."""
    await _serve(self, backend, request._replace(version=self._order.version))


MUTANTS = {
    "with-the-newest-snapshot": mutant(Companion, "_serve", with_the_newest_snapshot),
}
