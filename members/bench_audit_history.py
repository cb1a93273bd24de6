"""Long histories for the audit's benchmark: certified by the certifier, written as members write.

The rule it keeps: rows are those that a recorder gives for the same records, chained the same way;
only the way there is shorter. What is decided about transactions stays in columns until it is in a
file, and one process certifies while another one chains and writes. A history is made once: its
folder has its name when all of it is there.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from certifier.core import Certifier, CertifierOptions
from certifier.errors import InvalidSetting
from certifier.history import (
    CHAIN_START,
    FORMAT_VERSION,
    LIST_SEPARATOR,
    RecordKind,
    Row,
    Source,
    Value,
    link,
    place_of,
    signed,
    text_of,
)
from certifier.history_recorder import HistoryRecorder
from certifier.records import (
    GarbageCollection,
    Outcome,
    Record,
    Transaction,
    Verdict,
    ViewChange,
    position_of,
)
from members.certification_log import SCHEMA, as_table, file_name, writer

ITEMS: Final = {"uniform": 10_000_000, "zipf": 1_000_000, "hot": 10_000_000}
"""What items can be like, and how many there are."""
_ITEMS_EACH = 4
_ZIPF_EXPONENT = 0.99
_ALONE_SHARE = 0.0005
_LAG_MAX = 48
_HOT_NEWEST_SHARE = 0.9
_STABLE_PERIOD = 100_000
_STABLE_LAG = 1_000
_VIEW_PERIOD = 1_000_000
_BATCH = 32_768
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_GROUP_SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_MEMBERS = ("m1", "m2", "m3")
_OBSERVER, _HISTORY = "observer", "1"
_NAMES = {Verdict.CERTIFIED: "certified", Verdict.CONFLICT: "conflict"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a history is of.

    Each transaction writes four items, of 10 million that are all alike (`uniform`), of a million
    by Zipf's law with exponent 0.99 (`zipf`), or of 10 million of which one is in every transaction
    (`hot`). 0.05 % have no write set. Snapshots are up to 48 versions old; with `hot` items nine of
    ten are the newest there is, as nothing could be certified otherwise. `wrong_stamps`: as many
    have their `last_committed` lowered by one, and as many raised.
    """

    transactions: int
    items: str = "uniform"
    wrong_stamps: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.items not in ITEMS:
            raise InvalidSetting(name="items", value=self.items, expected=" or ".join(ITEMS))

    @property
    def name(self) -> str:
        """The name of its folder."""
        wrong = f"-wrong{self.wrong_stamps}" if self.wrong_stamps else ""
        return f"{self.items}-{self.transactions}-seed{self.seed}{wrong}"


class Transactions(NamedTuple):
    """Decided transactions that follow each other, by column.

    `items`: the write sets one behind the other, uint64; `ends`: where each of them ends there.
    """

    positions: list[int]
    origins: list[str]
    snapshots: list[int]
    newest: list[int]
    items: np.ndarray
    ends: np.ndarray
    outcomes: list[Outcome]


Piece = Transactions | list[Row]
"""Rows of a history that follow each other."""


def make(
    folder: Path, workload: Workload, on_transactions: Callable[[int], None] = lambda count: None
) -> Path:
    """The folder of the workload's history below `folder`, made now if it is not there.

    `on_transactions`: told how many were decided so far.
    """
    made = folder / workload.name
    if made.exists():
        return made
    unfinished = folder / f".{workload.name}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    processes = get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=_receive, args=(receiver, unfinished))
    process.start()
    receiver.close()
    try:
        count = 0
        for piece in pieces(workload):
            sender.send(piece)
            if isinstance(piece, Transactions):
                count += len(piece.ends)
                on_transactions(count)
        sender.send(None)
    finally:
        sender.close()
        process.join()
    assert process.exitcode == 0, "the files were written"
    unfinished.rename(made)
    return made


def write(folder: Path, history: Iterable[Piece], file_rows: int = 1_000_000) -> None:
    """Numbers, chains and writes rows, into files of about so many."""
    remaining = _tables(history)
    while (first := next(remaining, None)) is not None:
        row = {name: first[name][0].as_py() for name in ("observer", "history", "place")}
        with writer(folder / file_name(row)) as file:
            rows = 0
            table: pa.Table | None = first
            while table is not None:
                file.write_table(table, row_group_size=_BATCH)
                rows += table.num_rows
                table = next(remaining, None) if rows < file_rows else None


def pieces(workload: Workload) -> Iterator[Piece]:
    """The history, as the certifier decides it."""
    certifier = Certifier(
        CertifierOptions(group_source=_GROUP_SOURCE, collection_period_transactions=0)
    )
    recorder = HistoryRecorder(certifier, _OBSERVER, Source.TOTAL_ORDER, _HISTORY)
    wrong = _WrongStamps(workload)
    sequence = done = 0
    yield [recorder.start(position_of(1, 0))]
    for drawn in _drawn(workload):
        count = len(drawn.ends)
        decided = _certified(certifier, drawn, sequence)
        wrong.put_into(decided.outcomes)
        yield decided
        sequence += count
        done += count
        record: Record
        if done % _STABLE_PERIOD == 0:
            sequence += 1
            stable = max(certifier.window.newest_version - _STABLE_LAG, 0)
            record = GarbageCollection(position_of(sequence, 0), stable)
            certifier.deliver(record)
            yield recorder.garbage_collection(record)
        if done % _VIEW_PERIOD == 0:
            sequence += 1
            record = ViewChange(position_of(sequence, 0), False)
            certifier.deliver(record)
            yield [recorder.view_change(record, str(done // _VIEW_PERIOD), _MEMBERS)]


class _Drawn(NamedTuple):
    """What transactions of one batch ask for; `items` and `ends` as in `Transactions`."""

    origins: list[str]
    lags: list[int]
    items: np.ndarray
    ends: np.ndarray


def _drawn(workload: Workload) -> Iterator[_Drawn]:
    """Batches that end where a stable set comes."""
    chance = np.random.default_rng(workload.seed)
    total = ITEMS[workload.items]
    weights = np.arange(1, total + 1) ** -_ZIPF_EXPONENT if workload.items == "zipf" else None
    shares = None if weights is None else np.cumsum(weights) / weights.sum()
    done = 0
    while done < workload.transactions:
        left = min(workload.transactions - done, _STABLE_PERIOD - done % _STABLE_PERIOD)
        count = min(left, _BATCH)
        if shares is None:
            ranks = chance.integers(1, total, (count, _ITEMS_EACH))
        else:
            ranks = np.searchsorted(shares, chance.random((count, _ITEMS_EACH)))
        lags = chance.integers(0, _LAG_MAX + 1, count)
        if workload.items == "hot":
            ranks[:, 0] = 0
            lags[chance.random(count) < _HOT_NEWEST_SHARE] = 0
        kept = np.ones((count, _ITEMS_EACH), bool)
        for later in range(1, _ITEMS_EACH):
            kept[:, later] = (ranks[:, :later] != ranks[:, later : later + 1]).all(axis=1)
        kept[chance.random(count) < _ALONE_SHARE] = False
        origins = [_MEMBERS[number] for number in chance.integers(0, len(_MEMBERS), count)]
        items = (ranks.astype(np.uint64) * _MULTIPLIER)[kept]
        yield _Drawn(origins, lags.tolist(), items, np.cumsum(kept.sum(axis=1)))
        done += count


def _certified(certifier: Certifier, drawn: _Drawn, sequence: int) -> Transactions:
    """The transactions that follow the message `sequence` of the log, decided."""
    positions = [position_of(sequence + 1 + i, 0) for i in range(len(drawn.ends))]
    items, begin = drawn.items.tolist(), 0
    snapshots, newest_versions, outcomes = [], [], []
    certify, window = certifier.certify, certifier.window
    for position, origin, lag, end in zip(
        positions, drawn.origins, drawn.lags, drawn.ends.tolist(), strict=True
    ):
        newest = window.newest_version
        snapshot = newest - lag if lag < newest else 0
        newest_versions.append(newest)
        snapshots.append(snapshot)
        outcomes.append(certify(Transaction(position, origin, snapshot, items[begin:end])))
        begin = end
    return Transactions(
        positions, drawn.origins, snapshots, newest_versions, drawn.items, drawn.ends, outcomes
    )


class _WrongStamps:
    """Stamps that are made wrong, evenly spread over a history."""

    def __init__(self, workload: Workload) -> None:
        wrong = 2 * workload.wrong_stamps
        self._left = wrong
        self._period = workload.transactions * 4 // (5 * wrong) if wrong else 0
        self._waits = self._period

    def put_into(self, outcomes: list[Outcome]) -> None:
        """Lowers or raises `last_committed` of those whose turn it is and that have one."""
        if not self._left:
            return
        for place, outcome in enumerate(outcomes):
            self._waits -= 1
            if self._waits > 0 or not self._left or outcome.sequence_number is None:
                continue
            committed = outcome.last_committed
            assert committed is not None
            if not committed:
                continue
            change = -1 if self._left % 2 else 1
            outcomes[place] = outcome._replace(last_committed=committed + change)
            self._left -= 1
            self._waits = self._period


def _receive(receiver: Connection, folder: Path) -> None:
    """Writes what comes until None comes."""
    write(folder, iter(receiver.recv, None))


def _tables(history: Iterable[Piece]) -> Iterator[pa.Table]:
    """Rows as tables, numbered and chained."""
    number, chain = 0, CHAIN_START
    for piece in history:
        if isinstance(piece, Transactions):
            table, chain = _transaction_table(piece, number, chain)
        else:
            for offset, row in enumerate(piece, 1):
                row["number"] = number + offset
                row["chain"] = chain = link(chain, text_of(row))
            table = as_table(piece)
        number += table.num_rows
        yield table


_CERTIFIED_COLUMNS = (
    *("number", "place", "version", "origin", "gtid_source", "gtid_number", "gtid_brought"),
    *("snapshot_version", "write_set", "verdict", "is_local", "last_committed", "sequence_number"),
)
_CONFLICT_COLUMNS = (
    *("number", "place", "version", "origin", "gtid_brought", "snapshot_version", "write_set"),
    *("verdict", "winner_item", "winner_version", "winner_origin", "is_local"),
)
_CONSTANTS: dict[str, Value] = {
    "format_version": FORMAT_VERSION,
    "observer": _OBSERVER,
    "history": _HISTORY,
    "kind": RecordKind.TRANSACTION.value,
    "gtid_brought": False,
    "is_local": False,
}


def _template(names: Sequence[str], verdict: Verdict) -> str:
    """What is chained of a row with these columns, with places for what is not constant."""
    constants = _CONSTANTS | {"gtid_source": _GROUP_SOURCE, "verdict": _NAMES[verdict]}
    written = {"format_version", "observer", "history", "kind", *names}
    row: Row = {name: constants.get(name, "%s") for name in written}
    return text_of(row).replace(_counted("%s"), "%s")


def _counted(text: str) -> str:
    """A string as it is chained."""
    return f"{len(text)}:{text}"


_CERTIFIED_TEXT = _template(_CERTIFIED_COLUMNS, Verdict.CERTIFIED)
_CONFLICT_TEXT = _template(_CONFLICT_COLUMNS, Verdict.CONFLICT)


def _transaction_table(piece: Transactions, number: int, chain: bytes) -> tuple[pa.Table, bytes]:
    """The rows after row `number`, and the chain of the last one."""
    items = piece.items.view(np.int64)
    words, begin = list(map(str, items.tolist())), 0
    places = [place_of(position, RecordKind.TRANSACTION) for position in piece.positions]
    chains: list[bytes] = []
    winners: list[tuple[int | None, int | None, str | None]] = []
    for place, origin, snapshot, newest, end, outcome in zip(
        *(places, piece.origins, piece.snapshots, piece.newest, piece.ends.tolist()),
        piece.outcomes,
        strict=True,
    ):
        number += 1
        origin = _counted(origin)
        write_set = f"[{LIST_SEPARATOR.join(words[begin:end])}]"
        begin = end
        verdict, gtid, version, committed, sequence, conflict, _ = outcome
        if gtid is not None:
            text = _CERTIFIED_TEXT % (
                *(number, place, version, origin, gtid[1], snapshot, write_set),
                *(committed, sequence),
            )
            winners.append((None, None, None))
        else:
            assert conflict is not None and verdict is Verdict.CONFLICT
            item = signed(conflict.item)
            winner = (item, conflict.winner_version, conflict.winner_origin)
            told = (*winner[:2], _counted(conflict.winner_origin))
            text = _CONFLICT_TEXT % (number, place, newest, origin, snapshot, write_set, *told)
            winners.append(winner)
        chain = link(chain, text)
        chains.append(chain)
    return _as_columns(piece, number, places, winners, chains), chain


def _as_columns(
    piece: Transactions,
    last: int,
    places: list[int],
    winners: list[tuple[int | None, int | None, str | None]],
    chains: list[bytes],
) -> pa.Table:
    """The rows up to number `last`."""
    count = len(chains)
    verdicts, gtids, versions, committed, sequences, _, _ = zip(*piece.outcomes, strict=True)
    item, version, origin = zip(*winners, strict=True)
    offsets = pa.array(np.concatenate(([0], piece.ends)).astype(np.int32))
    columns: dict[str, object] = {name: [value] * count for name, value in _CONSTANTS.items()}
    columns |= {
        "number": np.arange(last - count + 1, last + 1),
        "place": places,
        "version": [own or met for own, met in zip(versions, piece.newest, strict=True)],
        "origin": piece.origins,
        "gtid_source": [None if gtid is None else gtid[0] for gtid in gtids],
        "gtid_number": [None if gtid is None else gtid[1] for gtid in gtids],
        "snapshot_version": piece.snapshots,
        "write_set": pa.ListArray.from_arrays(offsets, pa.array(piece.items.view(np.int64))),
        "verdict": [_NAMES[verdict] for verdict in verdicts],
        "winner_item": item,
        "winner_version": version,
        "winner_origin": origin,
        "last_committed": committed,
        "sequence_number": sequences,
        "chain": chains,
    }
    arrays = [
        pa.array(columns[name], kind) if name in columns else pa.nulls(count, kind)
        for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
