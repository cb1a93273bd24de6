"""Submits transactions to the group: whole where they fit into one message of its log.

The changes of a larger one go first, in fragments (`large_transactions/uploads.py`); then it is
submitted with a reference to them.
"""

from collections.abc import Callable, Sequence

from groupcert.v1 import store_pb2, transaction_pb2

from ...certifier.errors import TransactionTooLarge
from ...certifier.gtid_set import GtidSet
from ..core.log_records import LoggedTransaction, bytes_of
from ..core.publisher import Submission
from ..door.callers import CALLER, ROLES
from ..errors.membership import NotPrimary
from ..large_transactions.uploads import LargeUpload
from ..security.access import Role
from ..wire.requests import RequestLimits
from .serving import Serving


def limits_of_caller(runtime: Serving) -> RequestLimits:
    """Returns the limits of the call that is answered, by its caller: of `postgresql_tables` all,
    with the role for it.
    """
    limits = runtime.limits()
    if not limits.postgresql_tables:
        return limits
    tables = () if Role.POSTGRESQL in ROLES.get() else limits.postgresql_tables
    return limits._replace(postgresql_tables=tables, caller=CALLER.get())


def is_large(runtime: Serving, logged: LoggedTransaction) -> bool:
    """Returns whether a transaction goes through the log in fragments."""
    return len(logged.payload) > runtime.config.fragment_bytes


async def submit(runtime: Serving, logged: LoggedTransaction) -> Submission:
    """Orders a transaction of any size, see `MemberRuntime.submit` and `Uploads.begin`."""
    if is_large(runtime, logged):
        return await submit_large(runtime, [logged])
    _check_record(runtime, logged)
    return await runtime.submit((logged,))


async def submit_large(runtime: Serving, transactions: Sequence[LoggedTransaction]) -> Submission:
    """Orders transactions of which some are large, and their changes before them."""
    uploads: dict[int, LargeUpload] = {}
    release = runtime.held.hold_all(each.snapshot for each in transactions)
    try:
        for index, logged in enumerate(transactions):
            if is_large(runtime, logged):
                uploads[index] = await runtime.uploads.send(logged.payload)
        shortened = [
            logged._replace(payload=uploads[index].reference) if index in uploads else logged
            for index, logged in enumerate(transactions)
        ]
        return await submit_uploaded(runtime, list(uploads.values()), shortened)
    finally:
        release()
        for upload in uploads.values():
            upload.end()


async def submit_uploaded(
    runtime: Serving,
    uploads: Sequence[LargeUpload],
    transactions: Sequence[LoggedTransaction],
    decided: Callable[[Submission], None] | None = None,
) -> Submission:
    """Orders transactions whose changes are in the log. From here on the transactions end their
    fragments, even if no caller waits for the answer.
    """
    for logged in transactions:
        _check_record(runtime, logged)
    ordered = runtime.submit(transactions, decided)
    for upload in uploads:
        upload.is_submitted = True
    try:
        return await ordered
    except NotPrimary:  # No part of them was kept.
        for upload in uploads:
            upload.is_submitted = False
        raise


def check_first(
    runtime: Serving,
    logged: LoggedTransaction,
    request: store_pb2.CommitRequest | transaction_pb2.Transaction,
) -> None:
    """Raises OutcomeUnknown if a commit without rows may be a repetition: nothing would stop it."""
    if not request.first_attempt and runtime.known.passes_again(logged):
        raise runtime.known.unknown(logged.transaction_id)


def snapshot_of(runtime: Serving, request: store_pb2.CommitRequest) -> int:
    """Returns the version that a commit has read, and renews the lease of its snapshot."""
    if request.snapshot_id:
        return runtime.snapshots.version(request.snapshot_id, runtime.now_ms())
    return request.snapshot_version


def least_read(transaction: transaction_pb2.Transaction) -> int | GtidSet:
    """Returns the least version that a transaction has read, before that is parsed."""
    return GtidSet() if transaction.snapshot_gtid_set else transaction.snapshot_version


def _check_record(runtime: Serving, logged: LoggedTransaction) -> None:
    size = bytes_of(logged)
    if size > runtime.record_bytes_max:
        raise TransactionTooLarge(bytes=size, bytes_max=runtime.record_bytes_max)
