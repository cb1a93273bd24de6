"""Plain values to wire messages and back: the one place that knows both.

The rule it keeps: what comes from outside is checked here, against named limits, before anything
else sees it.
"""

from collections.abc import Container, Iterable, Sequence, Sized
from typing import NamedTuple

from google.protobuf.message import DecodeError

from applier.fragments import DIGEST_BYTES, FragmentSet, is_reference
from certifier.errors import (
    DomainNotAllowed,
    InvalidGtidSet,
    InvalidRequest,
    InvalidWriteSet,
    TransactionTooLarge,
    WriteSetTooLarge,
)
from certifier.gtid import parse_gtid
from certifier.gtid_set import GtidSet
from certifier.outcomes import TRANSACTION_ID_BYTES_MAX
from certifier.records import (
    Conflict,
    Outcome,
    log_index_of,
    log_sequence_of,
)
from certifier.write_set import check_write_set, items_from_texts, store_key_items
from groupcert.v1 import log_pb2, store_pb2, transaction_pb2
from members.log_records import (
    CONTROL_BYTES_MAX,
    FIELDS_MAX,
    FORMAT_VERSION,
    LARGE_NUMBER_MAX,
    Abandonment,
    Appointment,
    Control,
    Forgetting,
    Fragment,
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    Message,
    Skip,
    StableReport,
    Unreadable,
    ViewProposal,
    bytes_of,
)
from members.views import ViewMember
from members.wire_fields import fields

SNAPSHOT_GTID_SET_BYTES_MAX = 32 << 10
"""Of a client's snapshot: some 4,000 gaps. Each member reads it again, which takes up to 10 ms."""
SNAPSHOT_VERSION_MAX = 2**63 - 1
"""What certification logs take; on the wire it has 64 bits without a sign."""


class RequestLimits(NamedTuple):
    """What a client may hand in at most, a transaction; and the sessions that may set a domain."""

    write_set_items_max: int
    transaction_bytes_max: int
    domain_sessions: Container[str] = ()


def encode_batch(batch: LogBatch) -> bytes:
    """A batch as one message of the log."""
    message = log_pb2.LogBatch(
        format_version=FORMAT_VERSION,
        member=batch.member,
        incarnation=batch.incarnation,
        batch_number=batch.batch_number,
    )
    add = message.transactions.add
    for logged in batch.transactions:
        transaction = add(
            transaction_id=logged.transaction_id,
            write_set=logged.write_set,
            changes=logged.payload,
        )
        if isinstance(logged.snapshot, int):
            transaction.snapshot_version = logged.snapshot
        else:
            transaction.snapshot_gtid_set = str(logged.snapshot)
        if logged.read_set:
            transaction.read_set.extend(logged.read_set)
        if logged.gtid is not None:
            transaction.gtid = str(logged.gtid)
        if logged.report_applied:
            transaction.report_applied = True
        if logged.domain_id:
            transaction.gtid_domain_id = logged.domain_id
        if is_reference(logged.payload):
            _, number, count, size, digest = FragmentSet.of(logged.payload)
            transaction.ClearField("changes")
            transaction.fragments.MergeFrom(
                transaction_pb2.FragmentSet(number=number, count=count, bytes=size, digest=digest)
            )
    for number, index, data in batch.fragments:
        message.fragments.add(number=number, index=index, data=data)
    message.controls.extend(map(_control_message, batch.controls))
    return message.SerializeToString()


def decode_batch(payload: bytes) -> Message:
    """A message of the log as a batch, or what is wrong with it. `members/log_validity.py` says
    what of it counts.
    """
    try:
        head = log_pb2.LogBatchHead.FromString(payload)
        claims = (head.member, head.incarnation, head.batch_number)
        if head.format_version != FORMAT_VERSION:
            problem = f"it has format {head.format_version}, this release reads {FORMAT_VERSION}"
            return Unreadable(problem, *claims, head.format_version, payload)
        if problem := _why_too_many(payload):
            return Unreadable(problem, *claims, encoded=payload)
        message = log_pb2.LogBatch.FromString(payload)
    except DecodeError as error:
        return Unreadable(f"it is no batch ({error})", encoded=payload)
    if not message.incarnation:
        return Unreadable("it names no run of a member", *claims, encoded=payload)
    try:
        return LogBatch(
            *claims,
            [_ordered(each, message.incarnation) for each in message.transactions],
            list(map(_control_value, message.controls)) if message.controls else (),
            list(map(_fragment, message.fragments)) if message.fragments else (),
            payload,
        )
    except InvalidRequest as error:
        return Unreadable(str(error), *claims, encoded=payload)


def _why_too_many(payload: bytes) -> str:
    """Says what a message of the log has too many of, before that is in memory."""
    if len(payload) <= CONTROL_BYTES_MAX:
        return ""
    control_bytes = 0
    for count, (number, size) in enumerate(fields(payload), 1):
        control_bytes += size if number == log_pb2.LogBatch.CONTROLS_FIELD_NUMBER else 0
        if count > FIELDS_MAX:
            return f"it has more than {FIELDS_MAX} fields"
        if control_bytes > CONTROL_BYTES_MAX:
            return f"it has more than {CONTROL_BYTES_MAX} bytes of control records"
    return ""


def skips_in(payload: bytes) -> list[int]:
    """The messages that a message of the log says are to be skipped by who cannot read them."""
    message = decode_batch(payload)
    controls = message.controls if isinstance(message, LogBatch) else ()
    return [each.log_sequence for each in controls if isinstance(each, Skip)]


def _ordered(message: transaction_pb2.Transaction, incarnation: int) -> LoggedTransaction:
    """A transaction as it stands in a message of the log.

    Raises:
        InvalidRequest: No member can have taken it from a client.
    """
    check_id(message.transaction_id)
    if not message.HasField("fragments"):
        checked_changes(message.changes)
        return _logged(message, incarnation)
    _check_number(message.fragments.number)
    if len(message.fragments.digest) > DIGEST_BYTES:
        expected = f"a digest of fragments of {DIGEST_BYTES} bytes"
        raise InvalidWriteSet(value=f"{len(message.fragments.digest)} bytes", expected=expected)
    return _logged(message, incarnation)


def _fragment(message: log_pb2.Fragment) -> Fragment:
    _check_number(message.number)
    return Fragment(message.number, message.index, message.data)


def _check_number(number: int) -> None:
    """Raises InvalidWriteSet if a run cannot have come to that number of its transactions."""
    if number > LARGE_NUMBER_MAX:
        value = f"large transaction {number}"
        raise InvalidWriteSet(value=value, expected=f"a number of at most {LARGE_NUMBER_MAX}")


def _logged(message: transaction_pb2.Transaction, incarnation: int = 0) -> LoggedTransaction:
    snapshot_gtid_set = message.snapshot_gtid_set
    read_set = message.read_set
    gtid = message.gtid
    payload = message.changes
    if incarnation and message.HasField("fragments"):
        found = message.fragments
        digest = found.digest.ljust(DIGEST_BYTES, b"\0")
        fragments = FragmentSet(incarnation, found.number, found.count, found.bytes, digest)
        payload = fragments.reference()
    return LoggedTransaction(
        message.transaction_id,
        GtidSet.parse(snapshot_gtid_set) if snapshot_gtid_set else message.snapshot_version,
        list(message.write_set),
        list(read_set) if read_set else (),
        parse_gtid(gtid) if gtid else None,
        payload,
        message.report_applied,
        message.gtid_domain_id,
    )


def submitted(message: transaction_pb2.Transaction, limits: RequestLimits) -> LoggedTransaction:
    """A client's transaction as it goes into the log.

    Raises:
        InvalidRequest: It is over a limit, or a part of it is malformed; nothing was ordered.
    """
    check_id(message.transaction_id)
    check_snapshot(message.snapshot_version)
    check_domain(message.gtid_domain_id, message.session, limits)
    next_step = "send snapshot_version, or a set with fewer gaps"
    check_gtid_set(message.snapshot_gtid_set, SNAPSHOT_GTID_SET_BYTES_MAX, next_step)
    changes = checked_changes(message.changes) if message.changes else transaction_pb2.Changes()
    check_counts(changes, (message.write_set, message.write_set_keys, message.read_set), limits)
    named = [*message.write_set, *items_from_texts(message.write_set_keys)]
    logged = _logged(message)._replace(
        write_set=list(dict.fromkeys([*named, *changed_items(changes)])),
        read_set=list(dict.fromkeys(message.read_set)),
    )
    check_size(logged, limits)
    return logged


def submitted_commit(
    message: store_pb2.CommitRequest, snapshot_version: int, limits: RequestLimits, *, report: bool
) -> LoggedTransaction:
    """A commit of the embedded store as it goes into the log: its keys are its write set."""
    check_id(message.transaction_id)
    check_snapshot(snapshot_version)
    check_domain(message.gtid_domain_id, message.session, limits)
    changes = message.changes
    _check_pairs(changes)
    check_counts(changes, (message.read_keys,), limits)
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


def changed_items(changes: transaction_pb2.Changes) -> list[int]:
    """The write set of row changes: each changed key once."""
    items = [*store_key_items(changes.put_keys), *store_key_items(changes.delete_keys)]
    return list(dict.fromkeys(items))


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
    """Raises WriteSetTooLarge before anything is made of rows that are too many. They may be named
    in several ways, each of which is counted by itself.
    """
    rows = len(changes.put_keys) + len(changes.delete_keys)
    items = max(rows, *map(len, named))
    if items > limits.write_set_items_max:
        raise WriteSetTooLarge(items=items, items_max=limits.write_set_items_max)


def check_size(logged: LoggedTransaction, limits: RequestLimits) -> None:
    """Raises WriteSetTooLarge or TransactionTooLarge if a transaction is over its limits."""
    check_write_set(logged.write_set, limits.write_set_items_max)
    check_write_set(logged.read_set, limits.write_set_items_max)
    size = bytes_of(logged)
    if size > limits.transaction_bytes_max:
        raise TransactionTooLarge(bytes=size, bytes_max=limits.transaction_bytes_max)


def checked_changes(payload: bytes) -> transaction_pb2.Changes:
    """Row changes of bytes. Raises InvalidWriteSet if they cannot be executed; a member must never
    order such, nor take them from the log. Cost: about 1 µs for a few rows.
    """
    try:
        changes = transaction_pb2.Changes.FromString(payload)
    except DecodeError:
        raise InvalidWriteSet(
            value=payload[:32].hex(), expected="changes that are a serialized groupcert.v1.Changes"
        ) from None
    _check_pairs(changes)
    return changes


def _check_pairs(changes: transaction_pb2.Changes) -> None:
    if len(changes.put_keys) != len(changes.put_values):
        raise InvalidWriteSet(
            value=f"{len(changes.put_keys)} put_keys and {len(changes.put_values)} put_values",
            expected="one value for each key",
        )


def encode_changes(put_keys: Sequence[bytes], put_values: Sequence[bytes]) -> bytes:
    """Rows that are put, as a payload."""
    changes = transaction_pb2.Changes(put_keys=put_keys, put_values=put_values)
    return changes.SerializeToString()


def decode_changes(payload: bytes) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
    """Keys put, their values, and keys deleted."""
    changes = transaction_pb2.Changes.FromString(payload)
    return changes.put_keys, changes.put_values, changes.delete_keys


def changed_keys(payload: bytes) -> Sequence[bytes]:
    """The keys of the rows that a payload changes; none where it refers to them."""
    if is_reference(payload):
        return ()
    changes = transaction_pb2.Changes.FromString(payload)
    return [*changes.put_keys, *changes.delete_keys]


def outcome_message(
    transaction_id: bytes, outcome: Outcome, log_sequence: int, key: str = ""
) -> transaction_pb2.Outcome:
    """An outcome for a client; `key` names the row of a conflict where it is known."""
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


def conflict_message(conflict: Conflict, key: str = "") -> transaction_pb2.Conflict:
    """Why a transaction lost, for a client."""
    return transaction_pb2.Conflict(
        item=conflict.item,
        key=key,
        winner_gtid=str(conflict.winner_gtid),
        winner_member=conflict.winner_origin,
        winner_version=conflict.winner_version,
        winner_log_sequence=log_sequence_of(conflict.winner_position),
        snapshot_version=max(conflict.snapshot_version, 0),
        log_sequence=log_sequence_of(conflict.position),
    )


def _control_message(control: Control) -> log_pb2.ControlRecord:
    if isinstance(control, StableReport):
        return log_pb2.ControlRecord(stable_set=log_pb2.StableSet(**control._asdict()))
    if isinstance(control, GroupSettings):
        return log_pb2.ControlRecord(group_settings=log_pb2.GroupSettings(**control._asdict()))
    if isinstance(control, Abandonment):
        abandonment = log_pb2.Abandonment(number=control.number)
        return log_pb2.ControlRecord(abandonment=abandonment)
    if isinstance(control, Appointment):
        appointment = log_pb2.Appointment(primary=control.primary)
        return log_pb2.ControlRecord(appointment=appointment)
    if isinstance(control, Forgetting):
        return log_pb2.ControlRecord(forgetting=log_pb2.Forgetting(member=control.member))
    if isinstance(control, Skip):
        return log_pb2.ControlRecord(skip=log_pb2.Skip(log_sequence=control.log_sequence))
    members = [
        log_pb2.Member(
            name=each.name,
            incarnation=each.incarnation,
            address=each.address,
            weight=each.weight,
        )
        for each in control.members
    ]
    previous_view_id, _, cause, proposed_us = control
    change = log_pb2.ViewChange(
        previous_view_id=previous_view_id, members=members, cause=cause, proposed_us=proposed_us
    )
    return log_pb2.ControlRecord(view_change=change)


def _control_value(message: log_pb2.ControlRecord) -> Control:
    if message.HasField("stable_set"):
        report = message.stable_set
        return StableReport(
            report.applied_version,
            report.stable_version,
            report.digest_log_sequence,
            report.digest,
            report.durable_log_sequence,
            report.history_place,
            report.history_chain,
        )
    if message.HasField("group_settings"):
        settings = message.group_settings
        values = {name: getattr(settings, name) for name in GroupSettings._fields}
        return GroupSettings(**{**values, "members_allowed": tuple(settings.members_allowed)})
    if message.HasField("appointment"):
        return Appointment(message.appointment.primary)
    if message.HasField("abandonment"):
        _check_number(message.abandonment.number)
        return Abandonment(message.abandonment.number)
    if message.HasField("forgetting"):
        return Forgetting(message.forgetting.member)
    if message.HasField("skip"):
        return Skip(message.skip.log_sequence)
    change = message.view_change
    members = (
        ViewMember(
            name=each.name,
            incarnation=each.incarnation,
            address=each.address,
            weight=each.weight,
        )
        for each in change.members
    )
    return ViewProposal(change.previous_view_id, tuple(members), change.cause, change.proposed_us)
