"""The log of a live server as entries of a replica, read in the order of the log.

The rule it keeps: a transaction's version is its place in the source's log, whatever of it the
replica has: so those that fill a gap are older than those that were executed beyond it.

A source without stamps gives those of its group commits: a transaction waits for all before its
own group. Where a server's file begins, there is a rotation, after which stamps begin again.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, NamedTuple

from ...certifier.errors import GroupcertError
from ...certifier.gtid import Gtid
from ...certifier.gtid_set import GtidSet
from ...certifier.write_set import TableKeys
from ..mysql_logs.binary_log_reader import (
    BinaryLogTransaction,
    LoggedStatement,
    TransactionReader,
)
from ..mysql_logs.events import Event, EventType
from ..mysql_logs.gtid_set_encoding import previous_gtids
from ..mysql_logs.lock_intervals import LockIntervals
from ..mysql_logs.prepared_payload import is_prepared_step
from ..mysql_logs.statement_payload import (
    PayloadStatement,
    is_definition,
    payload_of,
    statements_of,
)
from ..queue.relay_group import RelayEntry
from ..source.header import SourceHeader
from .server_stream import ServerStream, domain_numbers, includes, mariadb_position
from .server_url import ServerUrl
from .source_errors import SourceRefused

ENTRIES_MAX = 256
BYTES_MAX = 1 << 20
HOLD_SECONDS = 0.05
"""Seconds that an entry waits for others that are to go on with it."""
ASK_SECONDS = 1.0
"""Seconds after which a source is asked again how far it is."""
EVENT_EXTRA_BYTES = 1 << 20
"""Bytes that an event may have beside the rows that it holds."""
_FILE_NUMBER = re.compile(r"\.(\d+)$")
_HEARTBEATS = (EventType.HEARTBEAT, EventType.HEARTBEAT_V2)


class LogRequest(NamedTuple):
    """What a replica asks of a source, `url`: all that is not in `received`, its entries at
    positions from `position` on.

    `server_id`: as for `ServerStream`. `keys`: of tables, as `database.table`, where the log has
    none. `items_max`: of a write set; 0: transactions stand for all rows. `payload_bytes_max`: of a
    transaction's rows.
    """

    url: str
    replica: str
    server_id: int
    keys: Mapping[str, TableKeys] | None
    items_max: int
    payload_bytes_max: int
    received: GtidSet
    position: int


PlainEntry = tuple[Any, ...]
"""A `RelayEntry` without the types of its parts: it goes to another process in half the time."""
LogNews = tuple[list[PlainEntry], int]
"""Some entries, or none, and the number of transactions that the source has, as versions count."""


def plain(entry: RelayEntry) -> PlainEntry:
    """Returns an entry as a plain tuple."""
    position, version, gtid, last, sequence, local, payload, header = entry
    return position, version, gtid and tuple(gtid), last, sequence, local, payload, tuple(header)


def entry_of(found: PlainEntry) -> RelayEntry:
    """Returns the entry that was made `plain`."""
    position, version, gtid, last, sequence, local, payload, header = found
    named = None if gtid is None else Gtid._make(gtid)
    made = SourceHeader._make(header)
    return RelayEntry(position, version, named, last, sequence, local, payload, made)


def follow_log(request: LogRequest) -> Iterator[LogNews]:
    """Yields the entries of a server's log as they come, first how far the server is, and none at
    each heartbeat; it ends with an error.

    Raises:
        As `ServerStream.open` and `TransactionReader.read`.
    """
    url, received = ServerUrl.parse(request.url), request.received
    limit = request.payload_bytes_max + EVENT_EXTRA_BYTES
    stream = ServerStream(url, request.replica, server_id=request.server_id, event_bytes_max=limit)
    with closing(stream):
        version, events = opened(stream, received)
        reader = TransactionReader(
            request.keys,
            items_max=request.items_max,
            rows=True,
            payload_bytes_max=request.payload_bytes_max,
            has_database=url.has_database,
            is_known=received.__contains__,
        )
        log = SourceLog(reader, url, received, version)
        if stream.is_mariadb:
            log.domains = domain_numbers(GtidSet.of(*mariadb_position(received).values()))
        yield from _news(stream, events, log, request.position)


def definitions_after(
    url: ServerUrl, replica: str, executed: GtidSet
) -> tuple[list[tuple[Gtid, PayloadStatement]], GtidSet]:
    """Returns the definitions in a server's log that are not in `executed`, with their GTIDs, and
    all that was read and before.

    Raises:
        As `ServerStream.open` and `TransactionReader.read`.

    Cost: the server sends all its log from there on; rows are not read.
    """
    found: list[tuple[Gtid, PayloadStatement]] = []
    read = executed.copy()
    with closing(ServerStream(url, replica)) as stream:
        stream.open(executed)
        reader = TransactionReader(
            items_max=0, rows=True, has_database=lambda _: False, is_known=executed.__contains__
        )
        events: Iterable[Event] = () if includes(read, stream.executed) else stream
        for event in events:
            transactions = reader.read(event)
            for transaction in transactions:
                if gtid := transaction.named:
                    statements = statements_of(payload_of(transaction))
                    found += [(gtid, each) for each in statements if is_definition(each.text)]
                    read.add(gtid)
            # Not at a heartbeat: MySQL sends some while it leaves out what it was not asked for.
            if transactions and includes(read, stream.executed):
                break
    return [each for each in found if each[0] not in executed], read


class SourceLog:
    """Makes a source's events entries, counted in the order of its log."""

    def __init__(
        self,
        reader: TransactionReader,
        url: ServerUrl,
        received: GtidSet,
        version: int,
    ) -> None:
        """Begins after `version` transactions of the source's log."""
        self.name = str(url)
        self.version = version
        self.domains: dict[int, int] = {}
        """Of each domain of MariaDB, the number of the last transaction that was read."""
        self._reader = reader
        self._url = url
        self._received = received
        self._intervals = LockIntervals()
        self._file = -1
        self._number = 0
        """Transactions of this file that were read."""

    def entries(self, event: Event, log_file: str, position: int) -> Sequence[RelayEntry]:
        """Returns the entries that an event ends, with positions counted from `position` on; those
        in `received` are left out. `log_file`: the one that the event is in.
        """
        transactions = self._reader.read(event)
        if not transactions and event.type != EventType.ROTATE:
            return ()
        found: list[RelayEntry] = []
        if event.type == EventType.ROTATE:
            named = _FILE_NUMBER.search(log_file)
            number = int(named[1]) if named else 0
            if number != self._file:
                self._file, self._number = number, 0
                self._intervals.begin_file()
                rotation = RelayEntry.rotation(self.version, number)
                found.append(rotation._replace(position=position))
        for transaction in transactions:
            if entry := self._entry(transaction, position + len(found)):
                found.append(entry)
        return found

    def _entry(self, transaction: BinaryLogTransaction, position: int) -> RelayEntry | None:
        self.version += 1
        self._number += 1
        interval = self._intervals.next(transaction)
        gtid = transaction.named
        if gtid is None:
            raise SourceRefused(
                source=self.name,
                problem=f"its transaction at byte {transaction.offset} has no GTID",
                next_step="copy its tables again: this part of its log cannot be followed",
            )
        if transaction.is_mariadb:
            self.domains[transaction.domain_id] = gtid.number
        if gtid in self._received:
            return None
        stamps = (transaction.last_committed, transaction.sequence_number)
        if not transaction.sequence_number:
            stamps = (self._number - interval, self._number)
        if transaction.statements:
            wanted = [each for each in transaction.statements if self._concerns(each)]
            transaction = transaction._replace(statements=tuple(wanted))
        payload = payload_of(transaction)
        header = transaction.header
        if is_prepared_step(payload):
            # It takes or leaves rows of another transaction: it runs alone.
            stamps = (0, 0)
            header = SourceHeader(domain_id=header.domain_id, committed_us=header.committed_us)
        else:
            # A commit parent of 0 is none, and its transaction runs alone.
            header = header._replace(commit_parent=self.version - interval + 1)
        header = header._replace(file=self._file)
        return RelayEntry(position, self.version, gtid, *stamps, False, payload, header)

    def _concerns(self, statement: LoggedStatement) -> bool:
        """Returns whether a statement may change what the replica has."""
        if statement.databases:
            return any(map(self._url.has_database, statement.databases))
        # MariaDB does not say what a statement changes: it has to name another database than the
        # one that its session was in.
        name = self._url.database
        return not statement.is_ddl or name in statement.text or name == statement.database


def opened(stream: ServerStream, received: GtidSet) -> tuple[int, Iterator[Event]]:
    """Opens a stream at the first transaction that is not in `received`; returns how many there are
    in the source's log before those that come, and the events.

    MariaDB sends all after the first gap. MySQL leaves out what was executed beyond one, so that
    the versions of the rest are not known: it is asked for all of the file that has the first gap.

    Raises:
        As `ServerStream.open`.
    """
    stream.open(received)
    if stream.is_mariadb:
        return sum(gtid.number for gtid in mariadb_position(received).values()), iter(stream)
    events: list[Event] = []
    missing = stream.executed - received
    if missing and received:
        for event in stream:
            events.append(event)
            if event.type == EventType.PREVIOUS_GTIDS:
                before = previous_gtids(event)
                if _is_in_order(received - before, missing):
                    break
                stream.close()
                stream.open(before)
                return before.count(), iter(stream)
    return received.count(), chain(events, stream)


def _is_in_order(executed: GtidSet, missing: GtidSet) -> bool:
    """Returns whether all that was executed of a file is known to be before all that is missing."""
    sources = {*executed.sources(), *missing.sources()}
    if not executed or len(sources) > 1:
        return not executed
    [source] = sources
    return executed.intervals(source)[-1][1] < missing.intervals(source)[0][0]


def _news(
    stream: ServerStream, events: Iterable[Event], log: SourceLog, position: int
) -> Iterator[LogNews]:
    batch: list[PlainEntry] = []
    size, since = 0, 0.0
    version, asked = _source_version(stream, log), time.monotonic()
    yield [], version
    try:
        for event in events:
            is_full = False
            if entries := log.entries(event, stream.log_file, position):
                now = time.monotonic()
                since = since if batch else now
                batch += map(plain, entries)
                size += sum(len(entry.payload) for entry in entries)
                position += len(entries)
                is_full = len(batch) >= ENTRIES_MAX or size >= BYTES_MAX
                is_full |= now - since > HOLD_SECONDS
            if (batch and (is_full or not stream.has_more)) or event.type in _HEARTBEATS:
                now = time.monotonic()
                if now - asked > ASK_SECONDS:
                    version, asked = _source_version(stream, log), now
                yield batch, version
                batch, size = [], 0
    except GroupcertError:
        # What was read before the failure is whole: a replica that stops there is to have it.
        yield batch, version
        raise


def _source_version(stream: ServerStream, log: SourceLog) -> int:
    """Returns the number of transactions that the source has, counted as their versions are."""
    newest = stream.newest()
    if not stream.is_mariadb:
        return newest.count()
    numbers = domain_numbers(newest)
    # A domain of which nothing was read may begin with any number.
    return log.version + sum(
        max(0, numbers.get(domain, 0) - read) for domain, read in log.domains.items()
    )
