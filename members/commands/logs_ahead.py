"""Binary logs that another process reads ahead: to read a transaction takes longer than to make
work of it.

The rule it keeps: what is read is the same, and so are its errors, whoever reads it.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from ...applier.mysql_logs.binary_log_reader import (
    BinaryLogReader,
    BinaryLogTransaction,
    read_binary_log,
)
from ...certifier.write_set import TableKeys
from ..host.worker_processes import WorkerProcesses

AHEAD_BYTES = 16 << 20
"""Size of a log from which on another process reads it: to begin it takes a second."""
BATCH_TRANSACTIONS = 1_000


def opened_logs(
    paths: Sequence[Path], keys: Mapping[str, TableKeys] | None, processes: int
) -> "list[BinaryLogReader | LogAhead]":
    """Returns the readers of the files of a binary log; with more than one process one reads.

    Raises:
        OSError: there is no such file.
    """
    return [
        LogAhead(path, keys)
        if processes > 1 and path.stat().st_size >= AHEAD_BYTES
        else read_binary_log(path, keys=keys)
        for path in paths
    ]


class LogAhead:
    """A binary log that another process reads while this one schedules what was read; it is used
    as a `BinaryLogReader` is.
    """

    def __init__(self, path: Path, keys: Mapping[str, TableKeys] | None) -> None:
        self.path = path
        self.notes: list[str] = []
        self.tables_without_keys: dict[str, str] = {}
        self._keys = keys

    def __iter__(self) -> Generator[BinaryLogTransaction, None, None]:
        """Yields the transactions.

        Raises:
            As `BinaryLogReader`.
        """
        receiver, sender = Pipe(duplex=False)
        with receiver, WorkerProcesses(1, partial(_ReadingProcess.begin, sender)) as pool:
            ended = pool.submit(_ReadingProcess.read, self.path, self._keys)
            sender.close()
            # It ends without a last batch when the other process has an error, which `ended` tells.
            with suppress(EOFError):
                while batch := receiver.recv():
                    yield from map(BinaryLogTransaction._make, batch)
            self.notes, self.tables_without_keys = ended.result()


class _ReadingProcess:
    """The other end of a `LogAhead`."""

    sender: Connection

    @classmethod
    def begin(cls, sender: Connection) -> None:
        """Takes the connection to who asks."""
        cls.sender = sender

    @classmethod
    def read(
        cls, path: Path, keys: Mapping[str, TableKeys] | None
    ) -> tuple[list[str], dict[str, str]]:
        """Sends a log's transactions, then an empty batch; returns its notes, and its tables
        without keys.
        """
        with cls.sender as sender:
            log = read_binary_log(path, keys=keys)
            # Plain tuples: they are pickled in half the time.
            transactions = map(tuple, log)
            while batch := list(islice(transactions, BATCH_TRANSACTIONS)):
                sender.send(batch)
            sender.send([])
        return log.notes, log.tables_without_keys
