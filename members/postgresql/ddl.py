"""Has all servers of a group change their schema: what `groupcert postgresql ddl` does.

The rule it keeps: nothing is certified that was not tried at each server, in a transaction that is
rolled back, and approved there by its superuser.
"""

import time
from collections.abc import Callable, Sequence

from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, VERDICT_CONFLICT, Changes

from ..client.client import Client
from ..client.client_options import certifiable
from ..errors.postgresql_servers import SchemaChangeRefused
from .attachment import name_of, opened, opened_attached
from .database import TRYING
from .schema_changes import KEY, SchemaChange, try_change

LOCK_TIMEOUT_MS = 5_000
"""Longest wait of a trial for a lock: transactions that have it are not ended."""
POLL_SECONDS = 0.05
_VERSIONS = (
    "SELECT (SELECT coalesce(max(version), 0) FROM groupcert.schema_changes),"
    " (SELECT coalesce(max(version), 0) FROM groupcert.executed)"
)
"""The version of the newest change that a server has executed, 0: none, and of all there."""


def change_for(
    dsn: str,
    statements: str,
    *,
    role: str | None = None,
    search_path: str | None = None,
    attach: bool = False,
    rewrite: bool = False,
) -> SchemaChange:
    """Returns a change; a role and a search path that are not given are those of the session."""
    with opened(dsn) as connection:
        ((user, path),) = connection.execute(
            "SELECT current_user, current_setting('search_path')"
        ).fetchall()
    return SchemaChange(
        statements=statements,
        role=role or user,
        search_path=search_path or path,
        attach=attach,
        rewrite=rewrite,
    )


def try_at(dsn: str, change: SchemaChange) -> int:
    """Tries a change at a server; returns the version of the newest one that it has executed.

    Raises:
        SchemaChangeRefused: The group cannot run it.
        UnsuitableTarget: The server is not attached.
    """
    with opened_attached(dsn) as connection:
        connection.execute(f"SET application_name TO '{TRYING}'".encode())
        ((newest, _),) = connection.execute(_VERSIONS).fetchall()
        connection.execute(f"SET LOCAL lock_timeout TO {LOCK_TIMEOUT_MS}".encode())
        try_change(connection, change)
        connection.rollback()
    return int(newest)


def approve_at(dsns: Sequence[str], change: SchemaChange) -> None:
    """Has the members of servers run a change when they have its turn."""
    # A change that was run before, and is approved once more, counts as not executed: `ddl` waits
    # for its next execution.
    approve = (
        "INSERT INTO groupcert.schema_changes (digest, change) VALUES (%s, %s)"
        " ON CONFLICT (digest) DO UPDATE SET version = NULL, gtid = NULL"
    )
    for dsn in dsns:
        with opened(dsn) as connection:
            connection.execute(approve, (change.digest, change.encode().decode()))


def certify(
    dsns: Sequence[str], client: Client, change: SchemaChange, newest: int
) -> tuple[str, int]:
    """Has the group certify a change that is approved; returns its GTID and its version.

    Args:
        newest: What `try_at` returned of the first server.

    Raises:
        SchemaChangeRefused: Another change came after the trial: try it again.
        GroupcertError: It is not certified, or nobody knows.
    """
    # A change behind this snapshot conflicts with ours. One that came before it, and after the
    # trial, would not.
    with opened(dsns[0]) as connection:
        ((newest_now, version),) = connection.execute(_VERSIONS).fetchall()
    if newest_now == newest:
        changes = Changes(put_keys=[KEY], put_values=[change.encode()])
        transaction = certifiable(snapshot=version, write_set=(), first_attempt=True)
        transaction.changes = changes.SerializeToString()
        outcome = client.certify(transaction)
        if outcome.verdict == VERDICT_CERTIFIED:
            return outcome.gtid, outcome.version
        if outcome.verdict != VERDICT_CONFLICT:
            raise SchemaChangeRefused(server=name_of(dsns[0]), problem=outcome.reason)
    withdraw = "DELETE FROM groupcert.schema_changes WHERE digest = %s AND version IS NULL"
    for dsn in dsns:
        with opened(dsn) as connection:
            connection.execute(withdraw, (change.digest,))
    problem = "another schema change came first: run this one again"
    raise SchemaChangeRefused(server=name_of(dsns[0]), problem=problem)


def wait_for_servers(
    dsns: Sequence[str],
    change: SchemaChange,
    *,
    seconds: float,
    show: Callable[[int], None] = lambda done: None,
) -> dict[str, str]:
    """Returns the servers that have not executed a change, each with the reason; none, at best.

    Args:
        seconds: How long it waits at most. A server that is out of its group is not waited for.
        show: Is called with how many servers have executed it.
    """
    deadline = time.monotonic() + seconds
    state = (
        "SELECT coalesce(out_of_group, ''), EXISTS (SELECT FROM groupcert.schema_changes"
        " WHERE digest = %s AND version IS NOT NULL) FROM groupcert.settings"
    )
    missing = dict.fromkeys(dsns, "")
    while True:
        for dsn in dsns:
            with opened(dsn) as connection:
                ((reason, is_executed),) = connection.execute(state, (change.digest,)).fetchall()
            if is_executed:
                missing.pop(dsn, None)
            elif dsn in missing:
                missing[dsn] = reason
        show(len(dsns) - len(missing))
        if all(missing.values()) or time.monotonic() > deadline:
            late = f"its member has not executed it within {seconds:.0f} s"
            return {name_of(dsn): reason or late for dsn, reason in missing.items()}
        time.sleep(POLL_SECONDS)
