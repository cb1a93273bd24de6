"""Sources of a replica: MySQL or MariaDB servers whose binary log it follows, one at a time.

The rule it keeps: GTIDs name what the replica has received, so that it may continue at another
server if one dies. Another process reads the log, which takes as long as to execute it does.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...applier.errors import InvalidBinaryLog
from ...applier.mysql_logs.binary_log_reader import ITEMS_MAX
from ...applier.mysql_servers.server_stream import includes
from ...applier.mysql_servers.server_url import ServerUrl
from ...applier.mysql_servers.source_errors import SourceLost, SourceRefused
from ...applier.mysql_servers.source_log import LogRequest, entry_of, follow_log
from ...applier.queue.relay_group import RelayEntry
from ...certifier.errors import Fenced, InvalidSetting
from ...certifier.gtid_set import GtidSet
from ...certifier.write_set import TableKeys
from ..host.other_process import OtherProcess
from .sources import SourceNews, in_turn


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
        self._urls = {str(ServerUrl.parse(url)): url for url in urls}
        self._replica = replica
        self._server_id = server_id
        self._keys = keys
        self._bytes_max = transaction_bytes_max
        self._items_max = ITEMS_MAX if compares_rows else 0
        self._stopped = threading.Event()
        self._reading: OtherProcess | None = None

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
            return self._follow(name, received, next_position())

        refusals = (Fenced, SourceRefused, InvalidSetting, InvalidBinaryLog)
        lost = (SourceLost,)
        try:
            yield from in_turn([*self._urls], follow, self._stopped, refusals=refusals, lost=lost)
        finally:
            self._end_reading()
            self._reading = None

    def stop(self) -> None:
        """Ends `follow`, from any thread."""
        self._stopped.set()
        self._end_reading()

    def _follow(self, name: str, received: GtidSet, position: int) -> Iterator[SourceNews]:
        request = LogRequest(
            self._urls[name],
            self._replica,
            self._server_id,
            self._keys,
            self._items_max,
            self._bytes_max,
            received,
            position,
        )
        try:
            # The process is kept from one source to the next: it takes a while to begin.
            reading = self._reading = self._reading or OtherProcess()
            # `stop` may have come before there was a process that it could end.
            if self._stopped.is_set():
                return
            for entries, version in reading.ask(follow_log, request):
                self.connected = name
                yield SourceNews([entry_of(each) for each in entries], name, version)
        except ChildProcessError as error:
            self._reading = None
            if not self._stopped.is_set():
                raise SourceLost(source=name, cause=str(error)) from error
        finally:
            self.connected = ""

    def _end_reading(self) -> None:
        if reading := self._reading:
            reading.end()


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
