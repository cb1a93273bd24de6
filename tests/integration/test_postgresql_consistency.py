"""What a client reads at a server after it, or another client, has written at another one.

Aim: whoever calls `groupcert_client.wait_for_executed` before BEGIN sees all that was committed
before; it waits without snapshot or lock, and always for an end.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, TypeAlias

import psycopg
import pytest
from typer.testing import CliRunner

from groupcert.members.commands.cli import app
from tests.integration.postgresql_group import (
    PostgresqlGroup,
    Primary,
    group_verb,
    increments,
)
from tests.integration.waiting import SECONDS_MAX, wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database]

Session: TypeAlias = "psycopg.Connection[Any]"
Wait: TypeAlias = Callable[[Session, Session], object]
"""What a client calls at the server where it reads, after it has written at the other one."""

READS = 300
"""Of each of `CLIENTS`."""
CLIENTS = 4
FAR = 1_000_000_000
"""A version that nobody reaches."""
CALL = "CALL groupcert_client.wait_for_executed(%s, %s)"
TOKEN = "SELECT groupcert_client.executed_version()"
LOCKS = "SELECT locktype FROM pg_locks WHERE pid = %s"
WAITING = "SELECT backend_xid, backend_xmin FROM pg_stat_activity WHERE pid = %s"


def opened(primary: Primary) -> Session:
    """Returns a session in autocommit."""
    return psycopg.connect(primary.dsn, autocommit=True)


def call(session: Session, version: int | None = None, timeout_ms: int = 60_000) -> None:
    """Waits for a version; None: for all that the group has certified."""
    session.execute(CALL, (version, timeout_ms))


def token_of(session: Session) -> int:
    """Returns what has been executed at a server."""
    ((version,),) = session.execute(TOKEN).fetchall()
    return int(version)


def lacks_last_write(write: Session, read: Session, account: int, wait: Wait) -> bool:
    """Commits at one server, waits and reads at another; returns whether that is missing there."""
    update = "UPDATE accounts SET balance = balance + 1 WHERE id = %s RETURNING balance"
    ((written,),) = write.execute(update, (account,)).fetchall()
    wait(write, read)
    with read.transaction():
        query = "SELECT balance FROM accounts WHERE id = %s"
        ((found,),) = read.execute(query, (account,)).fetchall()
    assert found <= written, "nobody else writes it"
    return bool(found < written)


def stale_reads(group: PostgresqlGroup, client: int, wait: Wait) -> Iterator[bool]:
    """Yields, of each read of a client, whether it was stale, while others write at all servers."""
    numbers = client % 3, (client + 1) % 3
    with ExitStack() as stack:
        write, read = (
            stack.enter_context(closing(opened(group.primaries[number]))) for number in numbers
        )
        while True:
            yield lacks_last_write(write, read, 10 + client, wait)


def test_without_a_call_reads_at_another_server_are_stale(servers3: PostgresqlGroup) -> None:
    with increments(servers3.primaries, range(1, 6)):
        reads = stale_reads(servers3, 0, lambda _write, _read: None)
        assert wait_for("a stale read", lambda: next(reads))


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(lambda _write, read: call(read), id="certified"),
        pytest.param(lambda write, read: call(read, token_of(write)), id="token"),
    ],
)
def test_whoever_waits_sees_what_was_committed_at_another_server(
    servers3: PostgresqlGroup, wait: Wait
) -> None:
    def stale(client: int) -> int:
        reads = stale_reads(servers3, client, wait)
        return sum(next(reads) for _ in range(READS))

    with increments(servers3.primaries, range(1, 6)), ThreadPoolExecutor(CLIENTS) as clients:
        assert sum(clients.map(stale, range(CLIENTS))) == 0
    servers3.settle()


def test_it_waits_until_the_server_has_executed_all_without_snapshot_or_lock(
    servers3: PostgresqlGroup, stack: ExitStack
) -> None:
    first, second, _ = servers3.primaries
    read, watch = (stack.enter_context(closing(opened(second))) for _ in range(2))
    call(read)
    clients = stack.enter_context(ThreadPoolExecutor(1))
    with servers3.member_stopped(1):
        first.query("UPDATE accounts SET balance = 4711 WHERE id = 20")
        waiting = clients.submit(call, read)
        wait_for("it waits", lambda: has_no_snapshot(watch, read))
        assert watch.execute(LOCKS, (read.info.backend_pid,)).fetchall() == [("virtualxid",)]
        assert not waiting.done()
    waiting.result(SECONDS_MAX)
    query = "SELECT balance FROM accounts WHERE id = 20"
    assert read.execute(query).fetchone() == (4711,)


def has_no_snapshot(watch: Session, waiting: Session) -> bool:
    """Whether a session waits for its member, and keeps nothing from being vacuumed."""
    pid = waiting.info.backend_pid
    query = f"{WAITING} AND state = 'active' AND query LIKE 'CALL %%'"
    return watch.execute(query.encode(), (pid,)).fetchall() == [(None, None)]


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("SELECT pg_cancel_backend(%s)", "canceling statement due to user request"),
        ("SET statement_timeout TO 300", "canceling statement due to statement timeout"),
        ("timeout_ms", "this server is behind for longer than 300 ms"),
    ],
)
def test_a_wait_ends_as_a_client_wants_it_and_the_session_goes_on(
    servers3: PostgresqlGroup, stack: ExitStack, end: str, message: str
) -> None:
    first, second, _ = servers3.primaries
    read, watch = (stack.enter_context(closing(opened(second))) for _ in range(2))
    clients = stack.enter_context(ThreadPoolExecutor(1))
    if end.startswith("SET"):
        read.execute(end.encode())
    waiting: Future[None] = clients.submit(call, read, FAR, 300 if end == "timeout_ms" else 0)
    if end.startswith("SELECT"):
        wait_for("it waits", lambda: has_no_snapshot(watch, read))
        watch.execute(end, (read.info.backend_pid,))
    with pytest.raises(psycopg.errors.QueryCanceled, match=message) as raised:
        waiting.result(SECONDS_MAX)
    detail = raised.value.diag.message_detail or ""
    assert detail.startswith(f"It waits for version {FAR}; the newest version that is executed")
    read.execute("RESET statement_timeout")
    read.execute("UPDATE accounts SET balance = balance WHERE id = 21")
    call(read, token_of(opened(first)))
    call(read)


def test_it_is_called_before_begin(servers3: PostgresqlGroup) -> None:
    """Else it would wait for what the transaction does not see, or commit what it has changed."""
    first, *_ = servers3.primaries
    before = first.query("SELECT balance FROM accounts WHERE id = 22")
    with closing(opened(first)) as session:
        for level in ("REPEATABLE READ", "READ COMMITTED"):
            session.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
            with pytest.raises(psycopg.errors.ActiveSqlTransaction, match="inside a tr") as raised:
                call(session)
            assert "before BEGIN" in (raised.value.diag.message_hint or "")
            session.execute("ROLLBACK")
        with pytest.raises(psycopg.errors.ActiveSqlTransaction):
            session.execute(
                "DO $$ BEGIN UPDATE accounts SET balance = 0 WHERE id = 22;"
                " CALL groupcert_client.wait_for_executed(); END $$"
            )
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="timeout_ms is -1, and has"):
            call(session, timeout_ms=-1)
    assert first.query("SELECT balance FROM accounts WHERE id = 22") == before


def test_a_server_out_of_its_group_says_so_unless_it_has_executed_enough(
    servers3: PostgresqlGroup,
) -> None:
    *_, last = servers3.primaries
    with closing(opened(last)) as session:
        call(session)
        assert group_verb("leave", last)
        left = "SELECT out_of_group FROM groupcert.settings WHERE out_of_group LIKE '%LEFT%'"
        wait_for("it is read-only", lambda: last.query(left))
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="LEFT"):
            call(session)
        call(session, token_of(session))
        assert group_verb("rejoin", last)
        wait_for("the server takes commits", last.takes_commits)
        call(session)


def test_a_server_that_takes_no_writes_is_read_after_the_primary(
    servers3: PostgresqlGroup, stack: ExitStack
) -> None:
    first, second, third = servers3.primaries
    set_mode(first, "single-primary", "--primary", first.name)
    for each in (second, third):
        left = "SELECT out_of_group FROM groupcert.settings WHERE out_of_group LIKE '%primary%'"
        wait_for("it is read-only", partial(each.query, left))
    write, read = (stack.enter_context(closing(opened(each))) for each in (first, second))
    assert read.execute("SHOW transaction_read_only").fetchone() == ("on",)
    for _ in range(20):
        assert not lacks_last_write(write, read, 23, lambda _write, read: call(read))
    set_mode(first, "multi-primary")
    for each in (second, third):
        wait_for("the server takes commits", each.takes_commits)


def set_mode(primary: Primary, mode: str, *flags: str) -> None:
    """Has an operator set the group's mode at a server's member."""
    arguments = ["group", "mode", mode, *flags, primary.address]
    assert CliRunner().invoke(app, arguments).exit_code == 0


def test_a_wait_ends_with_its_member(servers3: PostgresqlGroup, stack: ExitStack) -> None:
    *_, last = servers3.primaries
    read, watch = (stack.enter_context(closing(opened(last))) for _ in range(2))
    clients = stack.enter_context(ThreadPoolExecutor(1))
    waiting = clients.submit(call, read, FAR)
    wait_for("it waits", lambda: has_no_snapshot(watch, read))
    last.member.kill()
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="its member") as raised:
        waiting.result(SECONDS_MAX)
    assert "groupcert member" in (raised.value.diag.message_hint or "")
    last.member.start()
    wait_for("the server takes commits", last.takes_commits)
    call(read)
