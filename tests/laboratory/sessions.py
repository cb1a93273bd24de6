"""Checks what a client can tell by itself: a transaction sees one state, a session never goes back.

That lists do not get shorter for a session is checked where their order is known, in `append`.
"""

from collections.abc import Iterator

from tests.laboratory.findings import Finding
from tests.laboratory.history import History, Operation


def check_sessions(history: History) -> Iterator[Finding]:
    """Reads fit what was read and written before; versions fit what members were asked for."""
    for operation in history.operations:
        yield from _internal(operation)
        yield from _claims(operation)
    yield from _latest(history)


def _internal(operation: Operation) -> Iterator[Finding]:
    """Reads that differ from what the same transaction wrote, or had read before."""
    known: dict[bytes, bytes | None] = {}
    for is_write, key, value in operation.steps:
        if not is_write and key in known and known[key] != value:
            yield Finding(
                code="internal",
                summary=f"{operation.name} does not see one state of {key.decode()}",
                witness=[str(operation), f"it had {known[key]!r}, and then read {value!r}"],
            )
        known[key] = value


def _claims(operation: Operation) -> Iterator[Finding]:
    """A snapshot reaches the version that was asked for, and a commit is after its snapshot."""
    if not operation.transaction_id:
        return
    if operation.snapshot_version < operation.version_min:
        yield Finding(
            code="session",
            summary=f"{operation.name} got version {operation.snapshot_version}, and its session "
            f"had asked for {operation.version_min}",
            witness=[str(operation)],
        )
    if operation.is_committed and operation.has_writes:
        if operation.version <= operation.snapshot_version:
            yield Finding(
                code="version-order",
                summary=f"{operation.name} committed version {operation.version} on a snapshot "
                f"of {operation.snapshot_version}",
                witness=[str(operation)],
            )


def _latest(history: History) -> Iterator[Finding]:
    """Whoever asked for the latest state has all that was acknowledged before it asked."""
    acknowledged = sorted(
        (each for each in history.operations if each.is_committed and each.has_writes),
        key=lambda each: each.completed_ms,
    )
    place, newest = 0, None
    for operation in sorted(history.operations, key=lambda each: each.invoked_ms):
        while place < len(acknowledged) and acknowledged[place].completed_ms < operation.invoked_ms:
            if newest is None or acknowledged[place].version > newest.version:
                newest = acknowledged[place]
            place += 1
        if not operation.latest or not operation.transaction_id or newest is None:
            continue
        if operation.snapshot_version < newest.version:
            yield Finding(
                code="stale",
                summary=f"{operation.name} asked for the latest state, and got version "
                f"{operation.snapshot_version}, which has not {newest.name}",
                witness=[
                    f"{newest} was acknowledged at {newest.completed_ms} ms",
                    f"{operation} began at {operation.invoked_ms} ms",
                ],
            )
