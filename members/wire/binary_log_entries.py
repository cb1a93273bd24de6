"""Converts entries of a member's binary log to messages for replicas, and back.

The rule it keeps: an entry is one event; only a large transaction is several, one for each piece of
its changes, and is joined again before a replica uses it.
"""

from collections.abc import Iterable, Iterator

from groupcert.v1 import binary_log_pb2

from ...applier.queue.relay_group import RelayEntry
from ...applier.source.header import SourceHeader
from ...certifier.errors import TransactionTooLarge
from ...certifier.gtid import Gtid
from .pieces import joined


def events_of(entries: Iterable[RelayEntry]) -> list[binary_log_pb2.BinaryLogEvent]:
    """Returns entries of a member's binary log as events for replicas."""
    return list(map(_event, entries))


def entries_from(
    response: binary_log_pb2.SubscribeResponse, first_position: int
) -> list[RelayEntry]:
    """Returns the events that a replica got as entries for its applier: a transaction, view change
    or rotation each, with positions counted from `first_position` on.
    """
    return [
        _entry(event, position) for position, event in enumerate(response.events, first_position)
    ]


def large_events(
    entry: RelayEntry, pieces: Iterable[bytes]
) -> Iterator[binary_log_pb2.BinaryLogEvent]:
    """Yields the events of a large transaction, one for each piece of its changes."""
    event = _event(entry)
    earlier: bytes | None = None
    for piece in pieces:
        if earlier is not None:
            event.changes, event.continued = earlier, True
            yield event
            event = binary_log_pb2.BinaryLogEvent(
                kind=binary_log_pb2.BinaryLogEvent.KIND_TRANSACTION
            )
        earlier = piece
    event.changes, event.continued = earlier or b"", False
    yield event


class EventJoiner:
    """Joins the events of large transactions."""

    def __init__(self, bytes_max: int) -> None:
        """Keeps at most `bytes_max` bytes of a transaction's changes."""
        self._bytes_max = bytes_max
        self._first: binary_log_pb2.BinaryLogEvent | None = None
        self._pieces: list[bytes] = []
        self._bytes = 0

    def take(self, response: binary_log_pb2.SubscribeResponse) -> None:
        """Removes the events of a large transaction from a response, and puts them back as one
        event once it is complete.

        Raises TransactionTooLarge if the changes of one are more than may be kept.
        """
        if self._first is None and not any(event.continued for event in response.events):
            return
        whole = []
        for event in response.events:
            if self._first is None:
                self._first, self._pieces, self._bytes = event, [], 0
            self._pieces.append(event.changes)
            self._bytes += len(event.changes)
            if event.continued or len(self._pieces) > 1:
                if self._bytes > self._bytes_max:
                    raise TransactionTooLarge(bytes=self._bytes, bytes_max=self._bytes_max)
                if event.continued:
                    continue
            first, self._first = self._first, None
            if len(self._pieces) > 1:
                first.changes, first.continued = joined(self._pieces), False
            whole.append(first)
        del response.events[:]
        response.events.extend(whole)


def _event(entry: RelayEntry) -> binary_log_pb2.BinaryLogEvent:
    header = entry.header
    event = binary_log_pb2.BinaryLogEvent(
        kind=binary_log_pb2.BinaryLogEvent.KIND_TRANSACTION,
        file=header.file,
        version=entry.version,
        committed_us=header.committed_us,
    )
    if entry.gtid is None:
        is_view_change = header.view_id != 0
        event.kind = (
            binary_log_pb2.BinaryLogEvent.KIND_VIEW_CHANGE
            if is_view_change
            else binary_log_pb2.BinaryLogEvent.KIND_ROTATION
        )
        event.view_id = header.view_id
        return event
    event.gtid_source, event.gtid_number = entry.gtid
    event.sequence_number = entry.sequence_number
    event.last_committed = entry.last_committed
    event.commit_parent = header.commit_parent
    event.commit_id = header.commit_id
    event.domain_id = header.domain_id
    event.all_databases = header.databases is None
    event.databases.extend(header.databases or ())
    event.tables.extend(header.tables or ())
    event.write_set.extend(header.items)
    event.changes = entry.payload
    return event


def _entry(event: binary_log_pb2.BinaryLogEvent, position: int) -> RelayEntry:
    is_known = event.kind == event.KIND_TRANSACTION and not event.all_databases
    header = SourceHeader(
        commit_parent=event.commit_parent,
        commit_id=event.commit_id,
        domain_id=event.domain_id,
        databases=tuple(event.databases) if is_known else None,
        tables=tuple(event.tables) if is_known else None,
        items=tuple(event.write_set),
        committed_us=event.committed_us,
        file=event.file,
        view_id=event.view_id,
    )
    return RelayEntry(
        position=position,
        version=event.version,
        gtid=Gtid(event.gtid_source, event.gtid_number) if event.gtid_number else None,
        last_committed=event.last_committed,
        sequence_number=event.sequence_number,
        local=False,
        payload=event.changes,
        header=header,
    )
