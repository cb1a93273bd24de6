"""Sessions of a case, each in a thread of its own, and what their transactions were told.

A step that a lock holds up is left where it is: the driver goes on, and gives that session no other
step until it has ended.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from tests.postgresql.sql.case import Session, Step

STEP_SECONDS = 0.4
"""After which a step is left pending; a commit takes some hundredths."""
END_SECONDS = 3.0
"""For what is pending at the end, before it is cancelled."""
CONNECT_SECONDS_MAX = 10
UNKNOWN = frozenset(("08007", "57P01", ""))
"""SQLSTATEs of a COMMIT that leave open what became of it; "" is a lost connection."""

STRANGE = ("38", "39", "XX")
"""Classes of SQLSTATEs of a function that failed inside, as a trigger of the group's."""


@dataclass(slots=True)
class Told:
    """Ids of transactions that were acknowledged, those that failed, and all answers."""

    acknowledged: dict[int, Session] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    strange: list[str] = field(default_factory=list)
    """What no statement of a client's may be told."""


class Client:
    """One session, which connects again when it was ended."""

    def __init__(self, session: Session, dsn: str, told: Told) -> None:
        self.session = session
        self._dsn = dsn
        self._told = told
        self._thread = ThreadPoolExecutor(1)
        self._connection: psycopg.Connection[Any] | None = None
        self._marks: list[tuple[str, list[int]]] = [("", [])]
        """Of the open transaction, by the savepoint behind which they were written."""
        self._prepared: dict[str, list[int]] = {}
        self._pending: Future[None] | None = None

    def run(self, step: Step) -> None:
        """Runs a step, for as long as the driver waits; leaves it out if another is pending."""
        if step.kind == "cancel":
            self.cancel()
        elif self._pending and not self._pending.done():
            self._told.answers["left out"] += 1
        else:
            self._pending = self._thread.submit(self._run, step)
            wait([self._pending], STEP_SECONDS)

    def cancel(self) -> None:
        """Cancels what it runs."""
        if self._connection and not self._connection.closed:
            with suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=1.0)

    def end(self) -> None:
        """Rolls back what is open and closes the session."""
        if self._pending:
            for _ in range(5):
                if wait([self._pending], END_SECONDS).done:
                    self._pending.result()
                    break
                self.cancel()
        self._thread.submit(self._close).result(5 * END_SECONDS)
        self._thread.shutdown()

    def _close(self) -> None:
        if self._connection:
            self._connection.close()
        self._fail("it was closed")

    def _run(self, step: Step) -> None:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    self._dsn,
                    user=self.session.role,
                    autocommit=True,
                    connect_timeout=CONNECT_SECONDS_MAX,
                )
            message = self._execute(self._connection, step)
        except psycopg.Error as error:
            self._failed(step, error)
        except UnicodeError:  # The server's text is not what the client's encoding has.
            self._told.answers["unreadable"] += 1
        else:
            self._succeeded(step, message)

    def _execute(self, connection: "psycopg.Connection[Any]", step: Step) -> str:
        with connection.cursor() as cursor:
            if step.kind == "copy":
                with cursor.copy(step.sql.encode()) as copy:
                    copy.write(step.argument)
            else:
                cursor.execute(step.sql.encode())
                while cursor.nextset():
                    pass
            return cursor.statusmessage or ""

    def _succeeded(self, step: Step, message: str) -> None:
        self._told.answers[message.partition(" ")[0]] += 1
        if step.kind == "mark":
            self._marks[-1][1].append(int(step.argument))
        elif step.kind == "savepoint":
            self._marks.append((step.argument, []))
        elif step.kind in ("rollback_to", "release"):
            self._unwind(step)
        elif step.kind == "prepared":
            self._settle_prepared(step, message)
        if self._status is TransactionStatus.IDLE:
            if step.kind == "prepare" and message == "PREPARE TRANSACTION":
                self._prepared[step.argument] = self._taken()
            elif message == "COMMIT" or step.kind == "mark":
                self._told.acknowledged.update(dict.fromkeys(self._taken(), self.session))
            elif step.kind == "rollback" or message == "ROLLBACK":
                self._fail("it was rolled back")
            else:
                self._taken()

    def _unwind(self, step: Step) -> None:
        """Drops what was written behind a savepoint, or hands it to the one before."""
        inner: list[int] = []
        while len(self._marks) > 1:
            name, marks = self._marks.pop()
            inner += marks
            if name == step.argument:
                break
        if step.kind == "release":
            self._marks[-1][1].extend(inner)
        else:
            self._marks.append((step.argument, []))

    def _settle_prepared(self, step: Step, message: str) -> None:
        marks = self._prepared.pop(step.argument, [])
        if message.startswith("COMMIT"):
            self._told.acknowledged.update(dict.fromkeys(marks, self.session))
        else:
            self._told.absent.update(dict.fromkeys(marks, "it was prepared and rolled back"))

    def _failed(self, step: Step, error: psycopg.Error) -> None:
        self._told.answers[error.sqlstate or "lost"] += 1
        why = f"{error.sqlstate} {str(error).splitlines()[0] if str(error) else ''}"
        status = self._status
        if (error.sqlstate or "").startswith(STRANGE):
            self._told.strange.append(why)
        if step.kind == "mark":
            self._marks[-1][1].append(int(step.argument))
        if status is TransactionStatus.INERROR:
            self._go_on(why)
        elif status is not TransactionStatus.INTRANS:
            has_ended = step.kind in ("commit", "prepare", "prepared", "mark")
            if has_ended and (error.sqlstate or "") in UNKNOWN:
                self._taken()
            else:
                self._fail(why)

    def _go_on(self, why: str) -> None:
        """Has the steps that are left run behind the last savepoint, else in a new transaction."""
        assert self._connection is not None, "it has failed"
        name, marks = self._marks[-1]
        marks.clear()
        with suppress(psycopg.Error):
            if name:
                self._connection.execute(f"ROLLBACK TO {name}".encode())
                return
        self._fail(why)
        with suppress(psycopg.Error):
            self._connection.execute("ROLLBACK; BEGIN")

    @property
    def _status(self) -> TransactionStatus:
        if self._connection is None:
            return TransactionStatus.UNKNOWN
        return self._connection.info.transaction_status

    def _taken(self) -> list[int]:
        """Returns the marks of the transaction, which has ended."""
        marks = [mark for _, of_savepoint in self._marks for mark in of_savepoint]
        self._marks = [("", [])]
        return marks

    def _fail(self, why: str) -> None:
        self._told.absent.update(dict.fromkeys(self._taken(), why))


@contextmanager
def clients_of(
    sessions: tuple[Session, ...], dsns: list[str], told: Told
) -> Iterator[list[Client]]:
    """Yields a client for each session; all have ended after the block."""
    clients = [Client(session, dsns[session.server], told) for session in sessions]
    try:
        yield clients
    finally:
        for client in clients:
            client.end()
