"""The rows of a server at one version, read to compare them, and the comparison that reads them.

The rule it keeps: the order waits only until a session of its own has a snapshot, which is at most
for the commits before it and a round trip; all else is read from that snapshot while clients
write. No table is locked for longer than a page takes, so that nobody's TRUNCATE waits for it.

What a snapshot does not protect is told apart from rows that differ: a table that was truncated or
written anew is empty in it, and a schema change shows old rows under new columns. Then the rows are
given up, and the group compares once more.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import structlog
from xxhash import xxh3_64_intdigest

from ...certifier.errors import GroupcertError
from ..core.log_records import RowDigests
from ..core.views import MemberState
from ..errors.membership import NotComparable
from ..runtime.row_comparison import BYTES_PER_SECOND, RowComparison
from ..runtime.runtime import MemberRuntime
from .commit_order import Take
from .database import Database
from .functions import function_of
from .rows import key_of, table_name
from .tables import Table

AGAIN_SECONDS, AGAIN_SECONDS_MAX = 2.0, 3_600.0
"""After which the group compares once more where a server could not; doubled each time."""
OPEN_SECONDS = 1.0
"""For which the order waits for the session of a comparison that comes at once."""
CANCEL_SECONDS = 2.0
_ATTACHED = """
SELECT n.nspname || '.' || c.relname
FROM groupcert.attached JOIN pg_catalog.pg_class c ON c.oid = relation
JOIN pg_catalog.pg_namespace n ON n.oid = schema WHERE NOT c.relispartition"""
_BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    " SELECT ({0} = 0 OR groupcert.is_executed({0})) AND NOT groupcert.is_executed({0} + 1)"
)
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class ServerRows:
    """All rows of the attached tables as they were at a version, for one thread; `cancel` and
    `problem` are for others.
    """

    def __init__(self, session: "psycopg.Connection[Any]") -> None:
        """Takes a session, which `close` ends; `begin` follows."""
        self._session = session
        self._tables: Sequence[Table] = []
        self._is_checked = False
        self.problem = ""
        """Why the snapshot does not have the rows any more; "": it has."""

    def begin(self, version: int, after: str | None, tables: Iterable[Table]) -> None:
        """Takes the snapshot of tables, once the transaction `after` has committed, if there is
        one.

        Raises:
            psycopg.errors.TransactionRollback: It has not.
            NotComparable: The server is at another version.
        """
        self._tables = sorted(tables, key=lambda table: table.full_name)
        if after is not None:
            self._session.execute("SELECT groupcert.wait_for(%s)", (after,))
        begun = self._session.execute(_BEGIN.format(version).encode())
        begun.nextset()
        ((is_at,),) = begun.fetchall()
        if not is_at:
            raise not_comparable(f"the server is not at version {version}")

    @property
    def tables_hash(self) -> int:
        """A number for the tables that are attached, never 0."""
        names = "\n".join(table.full_name for table in self._tables)
        return xxh3_64_intdigest(names.encode()) or 1

    def scan(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values, table by table, by their primary keys; all, or those behind a key
        that was yielded, with a zero byte.

        Raises:
            NotComparable: They cannot be read any more.
        """
        self._check_tables()
        first, behind = table_name(start), start.removesuffix(b"\0")
        for table in self._tables:
            if table.full_name < first:
                continue
            key = behind if table.full_name == first else b""
            while page := self._page(table, key):
                yield from page
                key, _ = page[-1]

    def cancel(self) -> None:
        """Ends what another thread reads."""
        self.problem = self.problem or "the member ends its run"
        with suppress(psycopg.Error):
            self._session.cancel_safe(timeout=CANCEL_SECONDS)

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def _check_tables(self) -> None:
        """Raises NotComparable if other tables are attached than those that the member has read; to
        read them may be to wait for somebody who waits for the order, so that `begin` does not.
        """
        if self._is_checked:
            return
        try:
            found = {name for (name,) in self._session.execute(_ATTACHED.encode()).fetchall()}
            self._session.execute("SAVEPOINT page")
        except psycopg.Error as error:
            raise not_comparable(self.problem or error) from error
        if others := found ^ {table.full_name for table in self._tables}:
            raise not_comparable(f"{', '.join(sorted(others))} was attached or detached")
        self._is_checked = True

    def _page(self, table: Table, behind: bytes) -> list[tuple[bytes, bytes]]:
        """Returns the first rows of a table behind a key; b"": of all. It keeps no lock."""
        function = function_of("rows", table.full_name).replace("%", "%%")
        try:
            after = json.dumps([key_of(table, behind)]) if behind else None
            query = f"SELECT * FROM {function}(%s)".encode()
            result = self._session.execute(query, (after,)).pgresult
        except (psycopg.Error, ValueError) as error:  # The key may be a client's.
            raise not_comparable(self.problem or error) from error
        finally:
            with suppress(psycopg.Error):
                self._session.execute("ROLLBACK TO SAVEPOINT page")
        if self.problem:
            raise not_comparable(self.problem)
        assert result is not None, "a query without a result"
        return [
            (result.get_value(row, 0) or b"", result.get_value(row, 1) or b"")
            for row in range(result.ntuples)
        ]


class ServerComparison:
    """What takes the place of a `RowComparison` where a server keeps the rows."""

    def __init__(self, database: Database, runtime: MemberRuntime) -> None:
        """Begins without a comparison, on the event loop of the run."""
        self._database = database
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Task[ServerRows] | None = None
        """Opens the session of the comparison that is expected."""
        self._rows: ServerRows | None = None
        """Those of the last comparison, which may have been closed since."""
        self._position = 0
        self._again_seconds = AGAIN_SECONDS
        self._again: asyncio.Task[None] | None = None
        self._comparison = RowComparison(
            self._taken, self._bytes_per_second, self._on_digested, self._on_error
        )
        self.read = self._comparison.read
        self.forget = self._comparison.forget

    def expect(self) -> "asyncio.Task[ServerRows]":
        """Opens a session for the next comparison, so that the order does not wait for that."""
        if self._opening is None:
            self._opening = self._loop.create_task(self._open())
        return self._opening

    async def take(self, step: Take) -> bool:
        """Takes the rows, unless that fails, before anything else has its turn; returns False if
        the transaction before them, of a backend, has not committed.
        """
        self._position = step.position
        try:
            opening = self.expect()  # An earlier comparison may have had it.
            await asyncio.wait({opening}, timeout=OPEN_SECONDS)
            if not opening.done():
                raise not_comparable(f"no session at the server within {OPEN_SECONDS:.0f} s")
            rows = opening.result()
            tables = self._database.attached
            await asyncio.to_thread(rows.begin, step.version, step.after, tables)
        except psycopg.errors.TransactionRollback:
            return False
        except (psycopg.Error, GroupcertError) as error:
            self._give_up_opening()
            self._begin_later(error)
            return True
        self._opening, self._rows = None, rows
        self._comparison.expect(step.position)
        self._comparison.committed(step.position)
        return True

    def committed(self, _position: int) -> None:
        """Does nothing: the order says when the rows are taken."""

    def schema_changes(self) -> None:
        """Gives up the rows, before the snapshot shows them under other columns."""
        if self._rows is not None:
            self._rows.problem = "the schema was changed meanwhile"

    async def settle(self) -> None:
        """Notes that the server has the rows of others, whatever was left out here, if the last
        comparison has found that.
        """
        compared, run = self._runtime.member.comparisons, self._runtime.member.me.incarnation
        if not self._database.status.skipped_transactions or not compared.is_over:
            return
        kinds = [each.tables for each in compared.answers.values()]
        own = compared.answers.get(run)
        if own and kinds.count(own.tables) > 1 and not compared.differences():
            await self._database.settle_skipped(compared.version)

    def stop(self) -> None:
        """Ends what runs, and the sessions."""
        self._give_up_opening()
        if self._again is not None:
            self._again.cancel()
        if self._rows is not None:
            self._rows.cancel()
        self._comparison.stop()

    def _give_up_opening(self) -> None:
        if self._opening is not None:
            self._opening.add_done_callback(_close)
            self._opening = None

    async def _open(self) -> ServerRows:
        return ServerRows(await self._database.open_reader())

    def _taken(self) -> ServerRows:
        assert self._rows is not None, "no rows were taken"
        return self._rows

    def _bytes_per_second(self) -> int:
        # A member that does not serve has nothing to be held up.
        is_serving = self._runtime.member.state is MemberState.ONLINE
        return BYTES_PER_SECOND if is_serving else 0

    def _on_digested(self, digests: RowDigests) -> None:
        self._again_seconds = AGAIN_SECONDS
        assert self._rows is not None, "no rows were taken"
        self._runtime.on_digested(digests._replace(tables=self._rows.tables_hash))

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, NotComparable):
            self._loop.call_soon_threadsafe(self._begin_later, error)
        else:
            self._runtime.give_up(error)

    def _begin_later(self, error: Exception) -> None:
        seconds = self._again_seconds
        self._again_seconds = min(2 * seconds, AGAIN_SECONDS_MAX)
        log.warning("rows_not_compared", text=str(error), again_after_seconds=seconds)
        self._again = self._loop.create_task(self._begin_again(self._position, seconds))

    async def _begin_again(self, position: int, seconds: float) -> None:
        """Has the group compare once more, unless it does: it would wait for this member. Tables
        may have been attached since they were read.
        """
        await asyncio.sleep(seconds)
        try:
            await self._database.read_tables()
        except (psycopg.Error, GroupcertError) as error:
            self._begin_later(error)
            return
        runtime, member = self._runtime, self._runtime.member
        is_last = member.comparisons.position == position
        if is_last and not runtime.closed and member.state is MemberState.ONLINE:
            member.compare(runtime.now_us())
            runtime.send()


def not_comparable(why: object) -> NotComparable:
    """Returns the error for rows that cannot be read, or not any more."""
    said = why.diag.message_primary if isinstance(why, psycopg.Error) else None
    return NotComparable(problem=f"{said or why}: compare again")


def _close(opening: "asyncio.Task[ServerRows]") -> None:
    """Ends a session that nobody needs."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
