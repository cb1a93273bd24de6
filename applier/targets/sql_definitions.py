"""Definitions of tables, which a server commits by themselves: executed once, whatever ends the
process before they are noted.

What a definition names is noted before it is executed, as it is then. A process that finds such a
note looks again: if something differs, the definition was executed. If nothing does, it was not, or
changes nothing that is kept, and is executed.

Source: MariaDB Knowledge Base, "Atomic DDL": a definition is executed whole or not at all, and
commits what is open before it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import TransientFailure
from .sql_server import DefiningServer
from .sql_tables import Definition

Run = Callable[..., Sequence[tuple[Any, ...]]]
"""Runs statements in one session; returns the rows of the last."""


class DefinedOnce:
    """Executes the definitions of one replica."""

    def __init__(self, server: DefiningServer, replica: str, owner: str) -> None:
        """Takes the replica's name, and the hash of it that its locks bear."""
        self._server = server
        self._owner = owner
        self._replica = server.literal(replica)

    def execute(self, run: Run, gtid: str, definitions: Sequence[Definition]) -> None:
        """Executes the definitions of a transaction that were not executed yet. The caller notes
        the transaction together with the statement of `forget`.

        Raises:
            TransientFailure: whether the last one was executed is not known.
        """
        take, give_back = self._server.definition_lock(self._owner)
        # A session whose process has died may be executing one still.
        run(take)
        noted = run(
            f"SELECT gtid, number, named FROM groupcert_definitions WHERE replica = {self._replica}"
        )
        for number, definition in enumerate(definitions):
            named = self._server.named_tables(run, definition)
            if noted and noted[0][0] == gtid:
                last, before = noted[0][1:]
                if number < last or (number == last and named != before):
                    continue
            literals = f"{self._replica}, {self._server.literal(gtid)}, {number}"
            run(
                self.forget(),
                "INSERT INTO groupcert_definitions (replica, gtid, number, named)"
                f" VALUES ({literals}, {self._server.literal(named)})",
            )
            self._execute(run, definition)
        run(give_back)

    def _execute(self, run: Run, definition: Definition) -> None:
        try:
            run(*self._server.defined(definition))
        except TransientFailure:
            raise
        except Exception:
            # It was refused. What an operator then changes must not look as if it were executed.
            run(self.forget())
            raise

    def forget(self) -> str:
        """Returns the statement that deletes the note."""
        return f"DELETE FROM groupcert_definitions WHERE replica = {self._replica}"
