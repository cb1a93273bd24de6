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

from ...applier.mysql_logs.binary_log_reader import BinaryLogTransaction, TransactionReader
from ...applier.mysql_logs.source_catalogue import read_catalogue
from ...applier.mysql_logs.table_maps import keys_from
from ...applier.mysql_servers.server_stream import ServerStream
from ...applier.mysql_servers.server_url import ServerUrl
from ...applier.mysql_servers.snapshot import executed_gtids
from ...applier.whatif.history_work import COLUMNS
from ...certifier.write_set import TableKeys
from ..errors.usage import InvalidOption


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
