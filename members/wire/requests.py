"""Converts clients' requests to transactions for the log, and outcomes to answers.

A request is checked here, against named limits, before anything else sees it.
"""

from collections.abc import Container, Iterable, Sized
from functools import partial
from itertools import chain
from typing import NamedTuple

from google.protobuf.message import DecodeError

from groupcert.internal.v1 import log_pb2
from groupcert.v1 import store_pb2, transaction_pb2

from ...certifier.errors import (
    DomainNotAllowed,
    InvalidGtidSet,
    InvalidWriteSet,
    TransactionTooLarge,
    WriteSetTooLarge,
)
from ...certifier.gtid import parse_gtid
from ...certifier.gtid_set import GtidSet
from ...certifier.outcomes import TRANSACTION_ID_BYTES_MAX
from ...certifier.position import log_index_of, log_sequence_of
from ...certifier.records import Conflict, Outcome
from ...certifier.write_set import check_write_set, items_from_texts, store_key_items
from ..core.log_records import FRAMING_BYTES, ITEM_BYTES, LoggedTransaction, bytes_of
from ..core.reserved_keys import check_reserved
from .row_changes import changed_items, check_pairs, checked_changes

_new_logged = partial(tuple.__new__, LoggedTransaction)
SNAPSHOT_GTID_SET_BYTES_MAX = 32 << 10
"""Bytes of a client's snapshot: some 4,000 gaps. Each member reads it again, which takes up to 10
ms."""
SNAPSHOT_VERSION_MAX = 2**63 - 1
"""Largest number that certification logs take; on the wire it is an unsigned 64-bit number."""


class RequestLimits(NamedTuple):
    """Limits of a client's transaction, sessions that may set a domain, and reserved tables."""

    write_set_items_max: int
    transaction_bytes_max: int
    domain_sessions: Container[str] = ()
    postgresql_tables: tuple[str, ...] = ()
    """Patterns of the tables whose rows the caller may not write."""
    caller: str = ""


def submitted(message: transaction_pb2.Transaction, limits: RequestLimits) -> LoggedTransaction:
    """Returns a client's transaction as it goes into the log.

    Raises:
        InvalidRequest: It is over a limit, or a part of it is malformed; nothing was ordered.
    """
    if (plain := _plain(message, limits)) is not None:
        return plain
    transaction_id, snapshot = message.transaction_id, message.snapshot_version
    snapshot_text, domain_id = message.snapshot_gtid_set, message.gtid_domain_id
    payload, gtid = message.changes, message.gtid
    check_id(transaction_id)
    check_snapshot(snapshot)
    # Most have none of these: what a check costs is mostly its call.
    if domain_id:
        check_domain(domain_id, message.session, limits)
    if snapshot_text:
        next_step = "send snapshot_version, or a set with fewer gaps"
        check_gtid_set(snapshot_text, SNAPSHOT_GTID_SET_BYTES_MAX, next_step)
    changes = checked_changes(payload) if payload else transaction_pb2.Changes()
    named, texts, read_set = list(message.write_set), message.write_set_keys, message.read_set
    check_counts(changes, (named, texts, read_set), limits)
    check_keys(limits, changes.put_keys, changes.delete_keys)
    write_set = changed_items(changes)
    if texts or named != write_set:
        write_set = list(dict.fromkeys([*named, *items_from_texts(texts), *write_set]))
    fields = (
        transaction_id,
        GtidSet.parse(snapshot_text) if snapshot_text else snapshot,
        write_set,
        list(dict.fromkeys(read_set)),
        parse_gtid(gtid) if gtid else None,
        payload,
        message.report_applied,
        domain_id,
    )
    logged = _new_logged(fields)
    check_size(logged, limits)
    return logged


def _plain(message: transaction_pb2.Transaction, limits: RequestLimits) -> LoggedTransaction | None:
    """Returns a transaction that has only an id, a snapshot version, and a write set that is known,
    or the rows that it puts: nearly all are such. None if it has more, or is over a limit: that is
    said where each part is checked by itself.
    """
    transaction_id, snapshot = message.transaction_id, message.snapshot_version
    payload, write_set = message.changes, message.write_set[:]
    items = len(write_set)
    if (
        message.snapshot_gtid_set
        or message.gtid
        or message.gtid_domain_id
        or message.read_set
        or message.write_set_keys
        or limits.postgresql_tables
        or len(transaction_id) > TRANSACTION_ID_BYTES_MAX
        or snapshot > SNAPSHOT_VERSION_MAX
        or items > limits.write_set_items_max
        or FRAMING_BYTES + ITEM_BYTES * items + len(payload) > limits.transaction_bytes_max
        or (items > 1 and len(set(write_set)) < items)
    ):
        return None
    if payload:
        try:
            changes = transaction_pb2.Changes.FromString(payload)
        except DecodeError:
            return None
        keys = changes.put_keys[:]
        if changes.delete_keys or len(changes.put_values) != len(keys):
            return None
        if store_key_items(keys) != write_set:
            return None
    report = message.report_applied
    return _new_logged((transaction_id, snapshot, write_set, (), None, payload, report, 0))


def submitted_commit(
    message: store_pb2.CommitRequest, snapshot_version: int, limits: RequestLimits, *, report: bool
) -> LoggedTransaction:
    """Returns a commit of the embedded store as it is in the log: its keys are its write set."""
    check_id(message.transaction_id)
    check_snapshot(snapshot_version)
    check_domain(message.gtid_domain_id, message.session, limits)
    changes = message.changes
    check_pairs(changes)
    check_counts(changes, (message.read_keys,), limits)
    check_keys(limits, changes.put_keys, changes.delete_keys)
    logged = LoggedTransaction(
        message.transaction_id,
        snapshot_version,
        changed_items(changes),
        list(dict.fromkeys(store_key_items(message.read_keys))),
        None,
        changes.SerializeToString(),
        report,
        message.gtid_domain_id,
    )
    check_size(logged, limits)
    return logged


def logged_of(message: log_pb2.LoggedTransaction) -> LoggedTransaction:
    """Returns a transaction as it stands in a message of the log, but for what it says of
    fragments.
    """
    snapshot_gtid_set = message.snapshot_gtid_set
    read_set = message.read_set
    gtid = message.gtid
    fields = (
        message.transaction_id,
        GtidSet.parse(snapshot_gtid_set) if snapshot_gtid_set else message.snapshot_version,
        list(message.write_set),
        list(read_set) if read_set else (),
        parse_gtid(gtid) if gtid else None,
        message.changes,
        message.report_applied,
        message.gtid_domain_id,
    )
    return _new_logged(fields)


def check_id(transaction_id: bytes) -> None:
    """Raises InvalidWriteSet if a transaction id is too long."""
    if len(transaction_id) > TRANSACTION_ID_BYTES_MAX:
        raise InvalidWriteSet(
            value=transaction_id.hex(),
            expected=f"a transaction_id of at most {TRANSACTION_ID_BYTES_MAX} bytes",
        )


def check_snapshot(snapshot_version: int) -> None:
    """Raises InvalidWriteSet if a snapshot version is one that no member can ever have."""
    if snapshot_version > SNAPSHOT_VERSION_MAX:
        raise InvalidWriteSet(
            value=f"snapshot_version {snapshot_version}",
            expected=f"at most {SNAPSHOT_VERSION_MAX}: send a version that a member has told",
        )


def check_domain(domain_id: int, session: str, limits: RequestLimits) -> None:
    """Raises DomainNotAllowed if a session sets a domain and has no right to."""
    if domain_id and session not in limits.domain_sessions:
        raise DomainNotAllowed(session=session, domain_id=domain_id)


def check_gtid_set(text: str, bytes_max: int, next_step: str) -> None:
    """Raises InvalidGtidSet if a set is too long to be read."""
    if len(text) > bytes_max:
        raise InvalidGtidSet(
            text=text, part=f"{len(text)} bytes", expected=f"at most {bytes_max}: {next_step}"
        )


def check_counts(
    changes: transaction_pb2.Changes, named: Iterable[Sized], limits: RequestLimits
) -> None:
    """Raises WriteSetTooLarge if rows are too many, before anything is made of them. They may be
    named in several ways, each of which is counted by itself.
    """
    rows = len(changes.put_keys) + len(changes.delete_keys)
    items = max(rows, *map(len, named))
    if items > limits.write_set_items_max:
        raise WriteSetTooLarge(items=items, items_max=limits.write_set_items_max)


def check_keys(limits: RequestLimits, *written: Iterable[bytes]) -> None:
    """Raises KeyReserved if one of the keys is reserved for others than the caller."""
    if limits.postgresql_tables:
        check_reserved(limits.postgresql_tables, chain.from_iterable(written), limits.caller)


def check_size(logged: LoggedTransaction, limits: RequestLimits) -> None:
    """Raises WriteSetTooLarge or TransactionTooLarge if a transaction is over its limits."""
    check_write_set(logged.write_set, limits.write_set_items_max)
    check_write_set(logged.read_set, limits.write_set_items_max)
    size = bytes_of(logged)
    if size > limits.transaction_bytes_max:
        raise TransactionTooLarge(bytes=size, bytes_max=limits.transaction_bytes_max)


def outcome_message(
    transaction_id: bytes, outcome: Outcome, log_sequence: int, key: bytes = b""
) -> transaction_pb2.Outcome:
    """Returns an outcome for a client; `key` names the row of a conflict if it is known."""
    message = transaction_pb2.Outcome(
        transaction_id=transaction_id,
        verdict=outcome.verdict,  # type: ignore[arg-type]  # the numbers are the same by design
        version=outcome.version,
        log_sequence=log_sequence,
    )
    if outcome.gtid is not None:
        message.gtid = str(outcome.gtid)
    if outcome.conflict is not None:
        message.conflict.CopyFrom(conflict_message(outcome.conflict, key))
        message.log_index = log_index_of(outcome.conflict.position)
    if outcome.reason:
        message.reason = outcome.reason
    return message


def unknown_message(transaction_id: bytes, reason: str) -> transaction_pb2.Outcome:
    """Returns, for a client, that nobody can say what became of its transaction."""
    return transaction_pb2.Outcome(
        transaction_id=transaction_id, verdict=transaction_pb2.VERDICT_UNKNOWN, reason=reason
    )


def conflict_message(conflict: Conflict, key: bytes = b"") -> transaction_pb2.Conflict:
    """Returns a conflict as a message for the client that lost."""
    return transaction_pb2.Conflict(
        item=conflict.item,
        key=key.decode(errors="backslashreplace"),
        key_bytes=key,
        winner_gtid=str(conflict.winner_gtid),
        winner_member=conflict.winner_origin,
        winner_version=conflict.winner_version,
        winner_log_sequence=log_sequence_of(conflict.winner_position),
        snapshot_version=max(conflict.snapshot_version, 0),
        log_sequence=log_sequence_of(conflict.position),
    )
