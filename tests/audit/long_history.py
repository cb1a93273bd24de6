"""Long histories for the audit's benchmark and tests: certified by the certifier, recorded and
written as members do it. A history is made once: its folder has its name when it is all there.
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.history.recorder import HistoryRecorder
from groupcert.certifier.history.schema import Cursor, Row, Source
from groupcert.certifier.position import position_of
from groupcert.certifier.records import GarbageCollection, Outcome, Transaction, ViewChange
from groupcert.members.certification_log.files import write_file

ITEMS: Final = {"uniform": 10_000_000, "zipf": 1_000_000, "hot": 10_000_000}
"""What items can be like, and how many there are."""
FILE_ROWS = 1_000_000
_ITEMS_EACH = 4
_ZIPF_EXPONENT = 0.99
_LAG_MAX = 48
_HOT_NEWEST_SHARE = 0.9
_BATCH = 32_768
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_GROUP_SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_MEMBERS = ("m1", "m2", "m3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a history is of.

    Each transaction writes four items, of 10 million that are all alike (`uniform`), of a million
    by Zipf's law with exponent 0.99 (`zipf`), or of 10 million of which one is in every transaction
    (`hot`). 0.05 % have no write set. Snapshots are up to 48 versions old; with `hot` items nine of
    ten are the newest there is, as nothing could be certified otherwise. `wrong_stamps`: as many
    have their `last_committed` lowered by one, and as many raised. `file_rows`: of each file. A
    test has `items_total` fewer items, and shorter periods, in transactions.
    """

    transactions: int
    items: str = "uniform"
    wrong_stamps: int = 0
    file_rows: int = FILE_ROWS
    items_total: int = 0
    alone_share: float = 0.0005
    stable_period: int = 100_000
    stable_lag: int = 1_000
    view_period: int = 1_000_000

    def __post_init__(self) -> None:
        if self.items not in ITEMS:
            raise InvalidSetting(name="items", value=self.items, expected=" or ".join(ITEMS))

    @property
    def name(self) -> str:
        """The name of its folder, and in answers."""
        wrong = f"-wrong{self.wrong_stamps}" if self.wrong_stamps else ""
        rows = f"-rows{self.file_rows}" if self.file_rows != FILE_ROWS else ""
        return f"{self.items}-{self.transactions}{wrong}{rows}"


def make(folder: Path, workload: Workload) -> Path:
    """Returns the folder of the workload's history below `folder`; makes it if it is not there."""
    made, unfinished = folder / workload.name, folder / f".{workload.name}"
    if not made.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        write(unfinished, rows(workload), workload.file_rows)
        unfinished.rename(made)
    return made


def write(folder: Path, history: Iterable[Row], file_rows: int) -> None:
    """Numbers, chains and writes rows, into files of `file_rows`."""
    remaining, cursor = iter(history), Cursor()
    while file := write_file(folder, islice(remaining, file_rows), cursor):
        cursor = file.cursor


def rows(workload: Workload) -> Iterator[Row]:
    """Yields the history, as the certifier decides it."""
    options = CertifierOptions(group_source=_GROUP_SOURCE, collection_period_transactions=0)
    certifier = Certifier(options)
    recorder = HistoryRecorder(certifier, "observer", Source.TOTAL_ORDER, f"{1:016x}")
    corrupt = _Corruptor(2 * workload.wrong_stamps, workload.transactions)
    yield recorder.start(position_of(1, 0))
    sequence = 0
    for number, (origin, lag, items) in enumerate(_drawn(workload), 1):
        sequence += 1
        snapshot = max(certifier.window.newest_version - lag, 0)
        transaction = Transaction(position_of(sequence, 0), origin, snapshot, items)
        yield from recorder.transaction(transaction, corrupt(certifier.certify(transaction)))
        if number % workload.stable_period == 0:
            sequence += 1
            stable = max(certifier.window.newest_version - workload.stable_lag, 0)
            record = GarbageCollection(position_of(sequence, 0), stable)
            certifier.deliver(record)
            yield from recorder.garbage_collection(record)
        if number % workload.view_period == 0:
            sequence += 1
            view = ViewChange(position_of(sequence, 0), False)
            certifier.deliver(view)
            yield recorder.view_change(view, str(number // workload.view_period), _MEMBERS)


def _drawn(workload: Workload) -> Iterator[tuple[str, int, list[int]]]:
    """Yields of each transaction its origin, how old its snapshot is, and its items."""
    chance = np.random.default_rng(1)
    total = workload.items_total or ITEMS[workload.items]
    weights = np.arange(1, total + 1) ** -_ZIPF_EXPONENT if workload.items == "zipf" else None
    shares = None if weights is None else np.cumsum(weights) / weights.sum()
    for begin in range(0, workload.transactions, _BATCH):
        count = min(_BATCH, workload.transactions - begin)
        if shares is None:
            ranks = chance.integers(1, total, (count, _ITEMS_EACH))
        else:
            ranks = np.searchsorted(shares, chance.random((count, _ITEMS_EACH)))
        lags = chance.integers(0, _LAG_MAX + 1, count)
        if workload.items == "hot":
            ranks[:, 0] = 0
            lags[chance.random(count) < _HOT_NEWEST_SHARE] = 0
        alone = chance.random(count) < workload.alone_share
        origins = chance.integers(0, len(_MEMBERS), count)
        columns = (origins, lags, alone, ranks.astype(np.uint64) * _MULTIPLIER)
        for origin, lag, is_alone, items in zip(*(each.tolist() for each in columns), strict=True):
            yield _MEMBERS[origin], lag, [] if is_alone else list(dict.fromkeys(items))


class _Corruptor:
    """Lowers or raises some `last_committed`, evenly spread over a history."""

    def __init__(self, wrong: int, transactions: int) -> None:
        self._left = wrong
        self._waits = self._period = transactions * 4 // (5 * wrong) if wrong else 0

    def __call__(self, outcome: Outcome) -> Outcome:
        """Returns the outcome as the history has it."""
        self._waits -= 1
        if self._waits > 0 or not self._left or not outcome.last_committed:
            return outcome
        change = -1 if self._left % 2 else 1
        self._left -= 1
        self._waits = self._period
        return outcome._replace(last_committed=outcome.last_committed + change)
