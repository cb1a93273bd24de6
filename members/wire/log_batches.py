"""Messages of the group's log as bytes: batches of transactions, control records, fragments.

A message from the log is checked here as far as its bytes go; `core/record_kinds.py` says which of
its records count.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any

from google.protobuf.message import DecodeError

from groupcert.internal.v1 import log_pb2

from ...applier.queue.fragment_references import DIGEST_BYTES, FragmentSet, is_reference
from ...certifier.errors import InvalidRequest, InvalidWriteSet
from ..core.log_records import (
    CONTROL_BYTES_MAX,
    FIELDS_MAX,
    GTID_SETS_BYTES_MAX,
    LARGE_NUMBER_MAX,
    TRANSACTIONS_MAX,
    Abandonment,
    Control,
    Fragment,
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    Message,
    PlainColumns,
    Skip,
    Unreadable,
    ViewProposal,
)
from ..core.record_kinds import KIND_OF, RECORD_KINDS
from ..core.views import FORMAT_FIRST, FORMAT_VERSION, ViewMember
from .message_fields import fields
from .requests import check_id, logged_of
from .row_changes import checked_changes

LINGERING_BYTES_MAX = 4 << 10
"""Bytes of a message that waits for others: a larger one is worth a turn of its own."""
_KIND_IN = {kind.field: kind for kind in RECORD_KINDS}
_MEMBER_FIELDS = (
    "name",
    "incarnation",
    "address",
    "weight",
    "format_version",
    "release",
    "without_rows",
)
RELEASE_CHARACTERS_MAX = 64


def encode_batch(batch: LogBatch, format_version: int = FORMAT_FIRST) -> bytes:
    """Returns a batch as the bytes of one message of the log, in a format that members read."""
    for control in batch.controls:  # All members would skip the message: its sender has to ask.
        assert KIND_OF[type(control)].since_format <= format_version, (control, format_version)
    message = log_pb2.LogBatch(
        format_version=format_version,
        member=batch.member,
        incarnation=batch.incarnation,
        batch_number=batch.batch_number,
    )
    plain = PlainColumns.of(batch.transactions)
    if plain is not None:
        _add_plain(message, plain)
    add = message.transactions.add
    for logged in batch.transactions if plain is None else ():
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
            transaction.report_applied = message.urgent = True
        if logged.domain_id:
            transaction.gtid_domain_id = logged.domain_id
        if is_reference(logged.payload):
            _, number, count, size, digest = FragmentSet.of(logged.payload)
            transaction.ClearField("changes")
            transaction.fragments.MergeFrom(
                log_pb2.FragmentSet(number=number, count=count, bytes=size, digest=digest)
            )
    for number, index, data in batch.fragments:
        message.fragments.add(number=number, index=index, data=data)
    message.controls.extend(map(_control_message, batch.controls))
    return message.SerializeToString()


def decode_batch(payload: bytes) -> Message:
    """Returns a message of the log as a batch, or as what is wrong with it. `core/record_kinds.py`
    says which of its records count.
    """
    if problem := _why_too_many(payload):
        return _unreadable(problem, payload)
    try:
        message = log_pb2.LogBatch.FromString(payload)
    except DecodeError as error:
        return _unreadable(f"it is no batch ({error})", payload, is_batch=False)
    if not FORMAT_FIRST <= message.format_version <= FORMAT_VERSION:
        return _unreadable("", payload)
    claims = (message.member, message.incarnation, message.batch_number)
    if len(message.transactions) + len(message.plain_ids) > TRANSACTIONS_MAX:
        problem = f"it has more than {TRANSACTIONS_MAX} transactions"
        return Unreadable(problem, *claims, encoded=payload)
    if not message.incarnation:
        return Unreadable("it names no run of a member", *claims, encoded=payload)
    try:
        if problem := _why_no_record(message):
            return Unreadable(problem, *claims, encoded=payload)
        return LogBatch(
            *claims,
            _transactions(message),
            list(map(_control_value, message.controls)) if message.controls else (),
            list(map(_fragment, message.fragments)) if message.fragments else (),
            payload,
            message.format_version,
        )
    except InvalidRequest as error:
        return Unreadable(str(error), *claims, encoded=payload)


def _add_plain(message: log_pb2.LogBatch, plain: PlainColumns) -> None:
    """Adds transactions to a message as columns."""
    message.plain_ids.extend(plain.ids)
    message.plain_snapshot_versions = array("Q", plain.snapshots).tobytes()
    message.plain_write_set_sizes = array("I", map(len, plain.write_sets)).tobytes()
    message.plain_write_sets = array("Q", chain.from_iterable(plain.write_sets)).tobytes()
    message.plain_changes.extend(plain.payloads)


def _transactions(message: log_pb2.LogBatch) -> Sequence[LoggedTransaction]:
    """Returns the transactions of a message of the log.

    Raises:
        InvalidRequest: No member can have taken them from clients.
    """
    if not message.plain_ids:
        if message.ByteSize() > GTID_SETS_BYTES_MAX:
            _check_gtid_sets(message.transactions)
        return [_ordered(each, message.incarnation) for each in message.transactions]
    ids, payloads = list(message.plain_ids), list(message.plain_changes)
    snapshots = _numbers("Q", message.plain_snapshot_versions)
    sizes = _numbers("I", message.plain_write_set_sizes)
    items = _numbers("Q", message.plain_write_sets)
    lengths = {len(ids), len(payloads), len(snapshots), len(sizes)}
    if len(lengths) > 1 or sum(sizes) != len(items) or message.transactions:
        value = f"columns of {sorted(lengths)} transactions, with {len(items)} items"
        raise InvalidWriteSet(value=value, expected="columns of equal length, and nothing else")
    for transaction_id in ids:
        check_id(transaction_id)
    for payload in payloads:
        checked_changes(payload)
    ends = list(accumulate(sizes))
    write_sets = [items[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    return PlainColumns(ids, snapshots, write_sets, payloads)


def _check_gtid_sets(transactions: Iterable[log_pb2.LoggedTransaction]) -> None:
    """Raises InvalidWriteSet if a message has more of them than members let into one."""
    size = sum(len(each.snapshot_gtid_set) for each in transactions)
    if size > GTID_SETS_BYTES_MAX:
        expected = f"GTID sets of at most {GTID_SETS_BYTES_MAX} bytes in a message"
        raise InvalidWriteSet(value=f"{size} bytes", expected=expected)


def _numbers(code: str, encoded: bytes) -> list[int]:
    """Returns the numbers of a column. Raises InvalidWriteSet if one of them is cut off."""
    numbers = array(code)
    if len(encoded) % numbers.itemsize:
        expected = f"numbers of {numbers.itemsize} bytes"
        raise InvalidWriteSet(value=f"a column of {len(encoded)} bytes", expected=expected)
    numbers.frombytes(encoded)
    return numbers.tolist()


def _unreadable(problem: str, payload: bytes, *, is_batch: bool = True) -> Unreadable:
    """Returns a message as what is wrong with it: its format, if that is another one. Bytes that
    are no batch claim to be nobody's.
    """
    try:
        head = log_pb2.LogBatchHead.FromString(payload)
    except DecodeError as error:
        return Unreadable(f"it is no batch ({error})", encoded=payload)
    claims = (head.member, head.incarnation, head.batch_number)
    if FORMAT_FIRST <= head.format_version <= FORMAT_VERSION:
        claims = claims if is_batch else ("", 0, 0)
        return Unreadable(problem, *claims, encoded=payload)
    reads = f"this release reads {FORMAT_FIRST} to {FORMAT_VERSION}"
    problem = f"it has format {head.format_version}, {reads}"
    # Below the first one nobody has written: that is junk, and no newer release's message.
    later = head.format_version if head.format_version > FORMAT_VERSION else 0
    return Unreadable(problem, *claims, later, payload)


def is_urgent(payload: bytes, incarnation: int) -> bool:
    """Returns whether the run `incarnation` of a member takes a message at once: it is its own, is
    urgent, larger than `LINGERING_BYTES_MAX`, or no batch.
    """
    if len(payload) > LINGERING_BYTES_MAX:
        return True
    try:
        head = log_pb2.LogBatchHead.FromString(payload)
    except DecodeError:
        return True
    return head.incarnation == incarnation or head.urgent


def _why_too_many(payload: bytes) -> str:
    """Returns the problem of a message with too many fields, before it is parsed; or empty."""
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
    """Returns the sequences that a message orders to skip, by members that cannot read them."""
    message = decode_batch(payload)
    controls = message.controls if isinstance(message, LogBatch) else ()
    return [each.log_sequence for each in controls if isinstance(each, Skip)]


def _ordered(message: log_pb2.LoggedTransaction, incarnation: int) -> LoggedTransaction:
    """Returns a transaction of a message of the log.

    Raises:
        InvalidRequest: No member can have taken it from a client.
    """
    check_id(message.transaction_id)
    if not message.HasField("fragments"):
        logged = logged_of(message)
        checked_changes(logged.payload)
        return logged
    found = message.fragments
    _check_number(found.number)
    if len(found.digest) > DIGEST_BYTES:
        expected = f"a digest of fragments of {DIGEST_BYTES} bytes"
        raise InvalidWriteSet(value=f"{len(found.digest)} bytes", expected=expected)
    digest = found.digest.ljust(DIGEST_BYTES, b"\0")
    fragments = FragmentSet(incarnation, found.number, found.count, found.bytes, digest)
    return logged_of(message)._replace(payload=fragments.reference())


def _fragment(message: log_pb2.Fragment) -> Fragment:
    _check_number(message.number)
    return Fragment(message.number, message.index, message.data)


def _check_number(number: int) -> None:
    """Raises InvalidWriteSet if a run cannot have come to that number of its transactions."""
    if number > LARGE_NUMBER_MAX:
        value = f"large transaction {number}"
        raise InvalidWriteSet(value=value, expected=f"a number of at most {LARGE_NUMBER_MAX}")


def _control_message(control: Control) -> log_pb2.ControlRecord:
    values = control._asdict()
    if isinstance(control, ViewProposal):
        values["members"] = [_named(each, _MEMBER_FIELDS) for each in control.members]
    record: dict[str, Any] = {KIND_OF[type(control)].field: values}
    return log_pb2.ControlRecord(**record)


def _why_no_record(message: log_pb2.LogBatch) -> str:
    """Returns the problem of a control record that its message's format has not; or empty."""
    for control in message.controls:
        field = control.WhichOneof("record")
        if field is None:  # Of a later release, which gave it a format of its own, or of nobody.
            number, _ = next(fields(control.SerializeToString()), (0, 0))
            return f"it has a record of kind {number}, which this release does not know"
        if _KIND_IN[field].since_format > message.format_version:
            since = _KIND_IN[field].since_format
            return f"it has format {message.format_version}, and a {field} of format {since}"
    return ""


def _control_value(message: log_pb2.ControlRecord) -> Control:
    name = message.WhichOneof("record")
    assert name, "a record of no kind"
    found, kind = getattr(message, name), _KIND_IN[name].record
    values = _named(found, kind._fields)
    if kind is ViewProposal:
        values["members"] = tuple(map(_view_member, found.members))
    elif kind is GroupSettings:
        values["members_allowed"] = tuple(found.members_allowed)
        values["postgresql_tables"] = tuple(found.postgresql_tables)
    elif kind is Abandonment:
        _check_number(found.number)
    return kind(**values)


def _view_member(message: log_pb2.Member) -> ViewMember:
    values = _named(message, _MEMBER_FIELDS)
    return ViewMember(**values | {"release": message.release[:RELEASE_CHARACTERS_MAX]})


def _named(source: object, names: Iterable[str]) -> dict[str, Any]:
    """Returns attributes by their names, which are the same in records and messages."""
    return {name: getattr(source, name) for name in names}
