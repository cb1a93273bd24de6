"""Streams for `groupcert whatif` that are in no file of its own: of a live server, of a group.

The rule it keeps: a server is only asked; what is read of it is what its replicas get, from now on.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from groupcert.v1 import binary_log_pb2
from groupcert.v1.binary_log_pb2_grpc import BinaryLogServiceStub

from ...applier.mysql_logs.binary_log_reader import BinaryLogTransaction, TransactionReader
from ...applier.mysql_logs.source_catalogue import read_catalogue
from ...applier.mysql_logs.table_maps import keys_from
from ...applier.mysql_servers.server_stream import ServerStream
from ...applier.mysql_servers.server_url import ServerUrl
from ...applier.mysql_servers.snapshot import executed_gtids
from ...applier.queue.relay_group import RelayEntry
from ...applier.whatif.history_work import COLUMNS
from ...certifier.history.schema import RecordKind, Verdict
from ...certifier.write_set import TableKeys
from ..client.direct_calls import DirectMember
from ..errors.usage import InvalidOption
from ..security.credentials import Credentials
from ..wire.binary_log_entries import EventJoiner, entries_from
from ..wire.row_changes import changed_keys

MEMBER_BYTES_MAX = 1 << 30
"""The largest transaction that is read of a member, in bytes."""


class Limits(NamedTuple):
    """How much of a live server is read: whichever is reached first."""

    transactions: int
    seconds: float


class LiveLog:
    """The log of a live server, from now on; `reader` has what is known of it afterwards."""

    def __init__(self, url: str, limits: Limits) -> None:
        """Asks the server for the keys of its tables.

        Raises:
            InvalidSetting: it is no URL.
            SourceRefused, SourceLost: the server does not answer, or does not let this user in.
        """
        self.url = ServerUrl.parse(url)
        self.reader = TransactionReader(server_keys(url))
        self._limits = limits

    def __iter__(self) -> Iterator[BinaryLogTransaction]:
        """Yields the transactions that are committed from now on.

        Raises:
            As `ServerStream`.
        """
        stream = ServerStream(self.url, f"whatif-{secrets.token_hex(4)}")
        with self.url.connect() as session, session.cursor() as cursor:
            executed = executed_gtids(partial(_query, cursor))
        count = 0
        with closing(stream):
            stream.open(executed)
            until = time.monotonic() + self._limits.seconds
            for event in stream:
                for transaction in self.reader.read(event):
                    count += 1
                    yield transaction
                # Heartbeats are events, too: a server that has nothing to send says so.
                if count >= self._limits.transactions or time.monotonic() > until:
                    return


def server_keys(url: str) -> Mapping[str, TableKeys]:
    """Returns the keys of all tables of a server that its user may see, with columns by number.

    Raises:
        InvalidSetting, SourceRefused, SourceLost: as for `LiveLog`.
    """
    with ServerUrl.parse(url).connect() as session, session.cursor() as cursor:
        return keys_from(read_catalogue(partial(_query, cursor)))


def _query(cursor: Any, statement: str, values: Any = None) -> list[Any]:
    cursor.execute(statement, values)
    return list(cursor.fetchall())


class MemberLog:
    """The binary log of a running member: what it has committed when it is asked."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self.address = address
        self._credentials = credentials

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields its transactions, view changes and rotations as rows of a history.

        Raises:
            Unavailable, MemberFailed: the member does not answer, or keeps no binary log.
            NotAuthenticated, CallNotAllowed: it does not let this caller follow its log.
        """
        return map(_history_row, self._entries())

    def _entries(self) -> Iterator[RelayEntry]:
        remote = DirectMember(self.address, self._credentials)
        stub, joiner = BinaryLogServiceStub(remote.channel), EventJoiner(MEMBER_BYTES_MAX)
        try:
            oldest = stub.ListFiles(binary_log_pb2.ListFilesRequest()).files[0]
            request = binary_log_pb2.SubscribeRequest(
                replica="whatif", gtid_executed=oldest.previous_gtids
            )
            version, last = oldest.first_version - 1, None
            for response in stub.Subscribe(request):
                last = response.source_version if last is None else last
                joiner.take(response)
                for entry in entries_from(response, 0):
                    if entry.gtid or entry.header.view_id or version >= oldest.first_version:
                        yield entry  # All but the rotation with which each stream begins.
                    version = entry.version
                if version >= last:
                    return
        except grpc.RpcError as error:
            raise remote.failure(error) from error
        finally:
            remote.channel.close()


def _history_row(entry: RelayEntry) -> dict[str, Any]:
    """Returns an entry as a row with the columns that work is made of; a rotation is a barrier, as
    a view change is.
    """
    header, gtid = entry.header, entry.gtid
    if gtid is None:
        return {"kind": RecordKind.VIEW_CHANGE}
    known = {
        "kind": RecordKind.TRANSACTION,
        "verdict": Verdict.CERTIFIED,
        "version": entry.version,
        "gtid_source": gtid.source,
        "gtid_number": gtid.number,
        "last_committed": entry.last_committed,
        "sequence_number": entry.sequence_number,
        "write_set": header.items,
        "write_keys": [key.decode("utf-8", "replace") for key in changed_keys(entry.payload)],
        "domain_id": header.domain_id,
        "commit_id": header.commit_id,
        "commit_parent": header.commit_parent,
        "databases": header.databases,
        "tables": header.tables,
    }
    return dict.fromkeys(COLUMNS) | known


class History(NamedTuple):
    """One history in a folder: its observer, its files in their order, and how many others there
    are.
    """

    observer: str
    files: list[Path]
    others: int

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields its rows, with the columns that work is made of."""
        from pyarrow import parquet

        for path in self.files:
            for batch in parquet.ParquetFile(path).iter_batches(columns=list(COLUMNS)):
                yield from batch.to_pylist()


def longest_history(folder: Path) -> History:
    """Returns the history with most rows in a folder and those below it.

    Raises:
        InvalidOption: there is none.
        OSError: a file cannot be read.
    """
    from pyarrow import parquet

    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.rglob("*.parquet")):
        observer, history, _ = path.stem.rsplit("-", 2)
        found.setdefault((observer, history), []).append(path)
    if not found:
        raise InvalidOption(
            name="--certification-log", value=str(folder), expected="a folder with Parquet files"
        )
    rows = {
        history: sum(parquet.read_metadata(path).num_rows for path in files)
        for history, files in found.items()
    }
    longest = max(found, key=lambda history: rows[history])
    return History(longest[0], found[longest], len(found) - 1)
