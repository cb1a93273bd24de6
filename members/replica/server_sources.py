"""Sources of a replica: MySQL or MariaDB servers whose binary log it follows, one at a time.

The rule it keeps: GTIDs name what the replica has received, so that it may continue at another
server if one dies. A transaction's version is its place in the source's log, whatever of it the
replica has: so those that fill a gap are older than those that were executed beyond it.

A source without stamps gives those of its group commits: a transaction waits for all before its
own group. Where a server's file begins, there is a rotation, after which stamps begin again.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from ...applier.errors import InvalidBinaryLog
from ...applier.mysql_logs.binary_log_reader import (
    ITEMS_MAX,
    BinaryLogTransaction,
    LoggedStatement,
    TransactionReader,
)
from ...applier.mysql_logs.events import Event, EventType
from ...applier.mysql_logs.gtid_set_encoding import previous_gtids
from ...applier.mysql_logs.lock_intervals import LockIntervals
from ...applier.mysql_logs.prepared_payload import is_prepared_step
from ...applier.mysql_logs.statement_payload import payload_of
from ...applier.mysql_servers.server_stream import (
    ServerStream,
    domain_numbers,
    includes,
    mariadb_position,
)
from ...applier.mysql_servers.server_url import ServerUrl
from ...applier.mysql_servers.source_errors import SourceLost, SourceRefused
from ...applier.queue.relay_group import RelayEntry
from ...applier.source.header import SourceHeader
from ...certifier.errors import Fenced, GroupcertError, InvalidSetting
from ...certifier.gtid_set import GtidSet
from ...certifier.write_set import TableKeys
from .sources import SourceNews, in_turn

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


class ServerSources:
    """The servers that a replica may follow; the interface is that of `ReplicaSources`."""

    def __init__(
        self,
        urls: Sequence[str],
        replica: str,
        *,
        server_id: int = 0,
        keys: Mapping[str, TableKeys] | None = None,
        transaction_bytes_max: int = 1 << 30,
        compares_rows: bool = True,
    ) -> None:
        """Follows servers at `urls`, which `ServerUrl` describes; takes `transaction_bytes_max`
        bytes of a transaction's rows.

        Args:
            server_id: as for `ServerStream`.
            keys: keys of the sources' tables, as `database.table`, where their logs have none;
                they are looked up again after each statement of data definition.
            compares_rows: transactions have write sets; else they stand for all rows.

        Raises:
            InvalidSetting: a URL is none.
        """
        self.connected = ""
        self._urls = {str(url): url for url in map(ServerUrl.parse, urls)}
        self._replica = replica
        self._server_id = server_id
        self._keys = keys
        self._bytes_max = transaction_bytes_max
        self._items_max = ITEMS_MAX if compares_rows else 0
        self._stopped = threading.Event()
        self._stream: ServerStream | None = None

    def follow(self, received: GtidSet, next_position: Callable[[], int]) -> Iterator[SourceNews]:
        """Yields entries that are not in `received`, which the caller keeps up to date, until
        `stop`.

        Raises:
            PurgedAtSource, ReplicaAhead: No source can serve this replica.
            SourceRefused, InvalidSetting: No source lets it in, or is set up for replicas.
            InvalidBinaryLog: No source has a log that can be read.
            TransactionTooLarge: A transaction is larger than this replica takes.
        """

        def follow(name: str) -> Iterator[SourceNews]:
            return self._follow(self._urls[name], received, next_position)

        refusals = (Fenced, SourceRefused, InvalidSetting, InvalidBinaryLog)
        lost = (SourceLost,)
        yield from in_turn([*self._urls], follow, self._stopped, refusals=refusals, lost=lost)

    def stop(self) -> None:
        """Ends `follow`, from any thread."""
        self._stopped.set()
        if stream := self._stream:
            stream.hang_up()

    def _follow(
        self, url: ServerUrl, received: GtidSet, next_position: Callable[[], int]
    ) -> Iterator[SourceNews]:
        limit = self._bytes_max + EVENT_EXTRA_BYTES
        stream = self._stream = ServerStream(
            url, self._replica, server_id=self._server_id, event_bytes_max=limit
        )
        try:
            version, events = opened(stream, received)
            reader = TransactionReader(
                self._keys,
                items_max=self._items_max,
                rows=True,
                payload_bytes_max=self._bytes_max,
                has_database=url.has_database,
                is_known=received.__contains__,
            )
            log = SourceLog(reader, url, received, version)
            if stream.is_mariadb:
                log.domains = domain_numbers(GtidSet.of(*mariadb_position(received).values()))
            # `stop` may have come before there was a connection that it could end.
            if self._stopped.is_set():
                return
            self.connected = str(url)
            yield from _news(stream, events, log, next_position)
        except SourceLost:
            if not self._stopped.is_set():
                raise
        finally:
            self.connected = ""
            self._stream = None
            stream.close()


def changes_between(
    sources: ServerSources, executed: GtidSet, end: GtidSet
) -> Iterator[tuple[Sequence[RelayEntry], GtidSet]]:
    """Yields the transactions that are in `end` and not in `executed`, some at a time, each time
    with the set after them, which is `end` at last.

    Raises:
        As `ServerSources.follow`.
    """
    received = executed.copy()
    for news in () if includes(received, end) else sources.follow(received, lambda: 1):
        for entry in news.entries:
            if entry.gtid:
                received.add(entry.gtid)
        if includes(received, end):
            sources.stop()
        wanted = [entry for entry in news.entries if entry.gtid and entry.gtid in end]
        yield wanted, received.intersection(end)
    yield (), end


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

    def entries(self, event: Event, log_file: str, position: int) -> Iterator[RelayEntry]:
        """Yields the entries that an event ends, with positions counted from `position` on; those
        in `received` are left out. `log_file`: the one that the event is in.
        """
        if event.type == EventType.ROTATE:
            found = _FILE_NUMBER.search(log_file)
            number = int(found[1]) if found else 0
            if number != self._file:
                self._file, self._number = number, 0
                self._intervals.begin_file()
                yield RelayEntry.rotation(self.version, number)._replace(position=position)
                position += 1
        for transaction in self._reader.read(event):
            if entry := self._entry(transaction, position):
                yield entry
                position += 1

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
    stream: ServerStream, events: Iterable[Event], log: SourceLog, next_position: Callable[[], int]
) -> Iterator[SourceNews]:
    """Yields the entries of a stream, together as they come; none at each heartbeat."""
    batch: list[RelayEntry] = []
    size, since, asked, version = 0, 0.0, 0.0, 0
    position = next_position()
    try:
        for event in events:
            now = time.monotonic()
            for entry in log.entries(event, stream.log_file, position + len(batch)):
                since = since if batch else now
                batch.append(entry)
                size += len(entry.payload)
            is_full = len(batch) >= ENTRIES_MAX or size >= BYTES_MAX or now - since > HOLD_SECONDS
            if (batch and (is_full or not stream.has_more)) or event.type in _HEARTBEATS:
                if now - asked > ASK_SECONDS:
                    version, asked = _source_version(stream, log), now
                yield SourceNews(batch, log.name, version)
                batch, size = [], 0
                position = next_position()
    except GroupcertError:
        # What was read before the failure is whole: a replica that stops there is to have it.
        yield SourceNews(batch, log.name, version)
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
