"""Beginnings of event groups: the events with a transaction's GTID and the stamps of its overlap.

A value that the event does not have is the one that allows no parallelism: stamps 0 and 0, commit
id 0, domain 0, no time.

Source: WL#7165 (stamps), MDEV-4506 (commit id, domain), MySQL 8.4 source documentation of
Gtid_event, MariaDB Knowledge Base "GTID_EVENT".
"""

from typing import NamedTuple
from uuid import UUID

from ...certifier.gtid import NUMBER_MAX
from .cursor import Cursor
from .events import Event, EventType

_LOGICAL_CLOCK = 2
_TIMESTAMP_FLAG = 1 << 55
_FL_STANDALONE = 0x01
_FL_GROUP_COMMIT_ID = 0x02
_FL_DDL = 0x20
_TAGGED_FIELDS = 12
_NUMBERS = (
    *("last_committed", "sequence_number", "commit_id"),
    *("committed_us", "original_committed_us"),
)


class GroupStart(NamedTuple):
    """The content of a transaction's first event; `gtid` is None for an anonymous one.

    `is_open`: the transaction has begun, for MariaDB writes no BEGIN; it ends with its XID or
    COMMIT. `committed_us`, `original_committed_us`: the commit at the server that wrote the log,
    and where the transaction came from, in microseconds since 1970; 0 if not said.
    """

    gtid: str | None = None
    last_committed: int = 0
    sequence_number: int = 0
    commit_id: int = 0
    domain_id: int = 0
    committed_us: int = 0
    original_committed_us: int = 0
    is_open: bool = False
    is_ddl: bool = False


def group_start(event: Event) -> GroupStart:
    """Returns the content of an event of one of the four GTID types.

    Raises:
        InvalidBinaryLog: it is too short, has no GTID, or a number that no server gives.
    """
    if event.type == EventType.MARIADB_GTID:
        start = _mariadb(event)
    elif event.type == EventType.GTID_TAGGED:
        start = _tagged(event)
    else:
        start = _untagged(event)
    for name in _NUMBERS:
        if not 0 <= (number := getattr(start, name)) <= NUMBER_MAX:
            raise event.invalid(f"{name} {number}", f"0 to {NUMBER_MAX}")
    return start


def _untagged(event: Event) -> GroupStart:
    cursor = Cursor(event)
    cursor.take(1)
    uuid, number = UUID(bytes=cursor.take(16)), cursor.uint(8)
    gtid = None
    if event.type == EventType.GTID:
        gtid = f"{uuid}:{_checked(event, number)}"
    # Servers before MySQL 5.7 write no stamps.
    if cursor.remaining < 17 or cursor.uint(1) != _LOGICAL_CLOCK:
        return GroupStart(gtid)
    start = GroupStart(gtid, last_committed=cursor.uint(8), sequence_number=cursor.uint(8))
    if cursor.remaining < 7:
        return start
    committed = original = cursor.uint(7)
    if committed & _TIMESTAMP_FLAG:
        committed, original = committed ^ _TIMESTAMP_FLAG, cursor.uint(7)
    return start._replace(committed_us=committed, original_committed_us=original)


def _tagged(event: Event) -> GroupStart:
    """Returns the content of MySQL 8.4's event: numbered fields, of which some may be left out."""
    cursor = Cursor(event)
    version = cursor.varint()
    cursor.varint()  # The message's size: it fills the event.
    required = cursor.varint()
    if version or required > _TAGGED_FIELDS:
        raise event.invalid(
            f"a tagged GTID of version {version} with field {required - 1}",
            f"version 0 with fields up to {_TAGGED_FIELDS - 1}",
        )
    values: dict[int, int] = {}
    uuid, tag = bytes(16), ""
    while cursor.remaining and (field := cursor.varint()) < _TAGGED_FIELDS:
        if field == 1:
            octets = [cursor.varint() for _ in range(16)]
            if max(octets) > 255:
                raise event.invalid(f"{max(octets)} in a UUID", "bytes")
            uuid = bytes(octets)
        elif field == 3:
            tag = cursor.text(cursor.varint())
        else:
            values[field] = cursor.signed_varint() if field in (2, 4, 5) else cursor.varint()
    number = _checked(event, values.get(2, 0))
    committed = values.get(6, 0)
    return GroupStart(
        gtid=f"{UUID(bytes=uuid)}:{tag}:{number}" if tag else f"{UUID(bytes=uuid)}:{number}",
        last_committed=values.get(4, 0),
        sequence_number=values.get(5, 0),
        committed_us=committed,
        original_committed_us=values.get(7, committed),
    )


def _mariadb(event: Event) -> GroupStart:
    cursor = Cursor(event)
    number, domain_id, flags = cursor.uint(8), cursor.uint(4), cursor.uint(1)
    return GroupStart(
        gtid=f"{domain_id}-{event.server_id}-{_checked(event, number)}",
        commit_id=cursor.uint(8) if flags & _FL_GROUP_COMMIT_ID else 0,
        domain_id=domain_id,
        is_open=not flags & _FL_STANDALONE,
        is_ddl=bool(flags & _FL_DDL),
    )


def _checked(event: Event, number: int) -> int:
    if not 1 <= number <= NUMBER_MAX:
        raise event.invalid(f"a GTID with number {number}", f"1 to {NUMBER_MAX}")
    return number
