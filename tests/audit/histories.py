"""Histories for audits: a group of members on one random total order, each with its own log.

A `Group` certifies the same records at each member with the certifier itself, and gives each
member's rows; what an applier would have added (times, ticks, workers) is simulated. Tests make the
rows wrong before they are chained (a member that was wrong) or after (a log that was edited).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyarrow import parquet

from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.history.recorder import HistoryRecorder
from groupcert.certifier.history.schema import Cursor, RecordKind, Row, Source
from groupcert.certifier.position import position_of
from groupcert.certifier.records import GarbageCollection, Record, Transaction, ViewChange
from groupcert.members.certification_log.files import as_table, file_name, write_file

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "11111111-1111-1111-1111-111111111111"
DIGEST_BEFORE = "digest before"
"""Not a column: what a member could tell the group at a stable set."""
BEGIN_US = 1_780_000_000_000_000
OPENED_US = BEGIN_US + 86_400_000_000
"""When the audit of all scenes opens their logs: a day after they begin."""
_SENDERS = ("origin", "winner_origin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a random order is made of."""

    transactions: int = 400
    members: int = 3
    items: int = 60
    items_each: int = 3
    lag: int = 12
    """Snapshots are at most so many versions old, but for a few."""
    read_share: float = 0.2
    alone_share: float = 0.02
    brought_share: float = 0.02
    brought_own: bool = False
    """Whether GTIDs that are brought along are of the group's own source."""
    stable_every: int = 40
    view_every: int = 150
    block_size: int = 1
    load: tuple[int, ...] = ()
    """How busy each member is; all are alike by default."""
    gc_window: str = "close"
    joins: bool = False
    """Whether members join again at each view, so that their clocks begin again."""
    period: int = 16
    group: str = GROUP


def random_order(seed: int, workload: Workload) -> list[Record]:
    """Records of a total order, all from the seed; transactions are nobody's own yet."""
    chance = random.Random(seed)
    guide = Certifier(_options(workload))
    records: list[Record] = []
    for number in range(1, workload.transactions + 1):
        position = position_of(number, 0)
        newest = guide.window.newest_version
        if number % workload.view_every == 0:
            records.append(ViewChange(position, workload.joins))
        elif number % workload.stable_every == 0:
            stable = max(newest - chance.randrange(20), 0)
            if stable > guide.stable_version:
                records.append(GarbageCollection(position, stable))
        else:
            records.append(_transaction(chance, workload, position, newest, number))
        if records[-1].position == position:
            guide.deliver(records[-1])
    return records


def rows_of(
    records: Sequence[Record],
    observer: str,
    workload: Workload,
    *,
    name: str | None = None,
    lies: Mapping[int, int] | None = None,
    certifier: Certifier | None = None,
) -> list[Row]:
    """The rows of one member; transactions that it sent are local to it.

    Args:
        name: What its log calls it; else as the records do.
        lies: By position another snapshot that the certifier is told, or another stable version:
            it decides wrongly, and goes on consistently.
        certifier: Who decides; a new one of the workload's options by default.
    """
    certifier = certifier or Certifier(_options(workload))
    told = dict(lies or {})
    recorder = HistoryRecorder(certifier, name or observer, Source.MEMBER)
    rows = [recorder.start(records[0].position)]
    group, view = (name or observer).removesuffix(observer), 0
    for record in records:
        if isinstance(record, Transaction):
            own = record._replace(local=record.origin == observer)
            assert isinstance(own.snapshot, int)
            heard = own._replace(snapshot=told.get(own.position, own.snapshot))
            known: Row = {"session": "1", "snapshot_version": own.snapshot}
            rows += recorder.transaction(own, certifier.certify(heard), known)
        elif isinstance(record, ViewChange):
            view += 1
            certifier.deliver(record)
            members = [f"{group}m{number}" for number in range(1, workload.members + 1)]
            rows.append(recorder.view_change(record, str(view), members))
        else:
            assert isinstance(record, GarbageCollection) and isinstance(record.stable, int)
            newest = certifier.window.newest_version
            stable = told.get(record.position, record.stable)
            digest = int.from_bytes(certifier.digest(), "little", signed=True)
            certifier.deliver(record._replace(stable=min(stable, newest)))
            followed = recorder.garbage_collection(record)
            followed[0][DIGEST_BEFORE] = digest
            if record.position in told:
                followed[0]["stable_version"] = record.stable
            rows += followed
    for row in rows:
        row["decided_us"] = BEGIN_US + 100 * (int(str(row["place"])) >> 24)
        row |= {column: group + str(row[column]) for column in _SENDERS if row.get(column)}
    apply_rows(rows)
    return rows


def apply_rows(rows: Sequence[Row], workers: int = 4) -> None:
    """Adds when an applier with so many workers ran each transaction: each starts when all up to
    its `last_committed` are committed and a worker is free; commits are in order, one a tick.
    """
    tick, clock_us = 1, BEGIN_US
    committed_ticks: dict[int, int] = {0: 0, 1: 0}
    free_us = [BEGIN_US] * workers
    commit_us: dict[int, int] = {}
    last_commit_us = barrier_tick = barrier_us = 0
    written: dict[int, tuple[int, int]] = {}
    seen: dict[int, tuple[int, int]] = {}
    for row in rows:
        if row["kind"] == RecordKind.VIEW_CHANGE:
            committed_ticks, commit_us = {0: tick, 1: tick}, {}
            barrier_tick, barrier_us = tick, last_commit_us
        if row["kind"] != RecordKind.TRANSACTION or row["verdict"] != "certified":
            continue
        decided = int(str(row["decided_us"]))
        tick += 1
        items = row["write_set"]
        assert isinstance(items, list)
        seen_tick, seen_us = max((seen.get(int(item), (0, 0)) for item in items), default=(0, 0))
        if row["is_local"]:
            started_tick, started = 0, decided
            seen |= {int(item): written.get(int(item), (0, 0)) for item in items}
        else:
            waits_for = int(str(row["last_committed"]))
            started_tick = max(committed_ticks.get(waits_for, barrier_tick), tick - workers, 1)
            started_tick = max(started_tick, seen_tick)
            worker = min(range(workers), key=free_us.__getitem__)
            started = max(
                decided,
                free_us[worker],
                barrier_us,
                seen_us,
                commit_us.get(waits_for, barrier_us),
            )
            row["worker"], row["executed_us"] = worker, started + 150
        clock_us = max(started + 150, last_commit_us + 1)
        if not row["is_local"]:
            free_us[worker] = clock_us
            number = int(str(row["sequence_number"]))
            committed_ticks[number], commit_us[number] = tick, clock_us
            written |= dict.fromkeys(map(int, items), (tick, clock_us))
        last_commit_us = clock_us
        row["started_tick"], row["committed_tick"] = started_tick, tick
        row["started_us"], row["committed_us"] = started, clock_us


def write(folder: Path, *histories: Sequence[Row]) -> list[str]:
    """Writes each history as files of a folder, chained, and returns the paths for an audit."""
    for rows in histories:
        middle = len(rows) // 2
        first = write_file(folder, [dict(row) for row in rows[:middle]], Cursor())
        assert first
        write_file(folder, [dict(row) for row in rows[middle:]], first.cursor)
    return [str(folder)]


def write_as_is(folder: Path, *histories: Sequence[Row]) -> None:
    """Writes histories that are numbered and chained already, rightly or not, into one file: Spark
    takes longer to open a file than to read hundreds of rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = as_table([row for rows in histories for row in rows])
    parquet.write_table(table, folder / file_name(histories[0][0]))


def tight(workload: Workload) -> Workload:
    """The same with the window that collections leave open."""
    return replace(workload, gc_window="tight")


def _options(workload: Workload) -> CertifierOptions:
    return CertifierOptions(
        group_source=workload.group,
        gtid_assignment_block_size=workload.block_size,
        gc_window=workload.gc_window,
        collection_period_transactions=workload.period,
    )


def _transaction(
    chance: random.Random, workload: Workload, position: int, newest: int, number: int
) -> Transaction:
    back = chance.randrange(60) if chance.random() < 0.02 else chance.randrange(workload.lag)
    count = 0 if chance.random() < workload.alone_share else chance.randint(1, workload.items_each)
    reads = chance.randint(1, 3) if chance.random() < workload.read_share else 0
    brought = chance.random() < workload.brought_share
    source = workload.group if workload.brought_own else OTHER
    return Transaction(
        position=position,
        origin=_origin(chance, workload),
        snapshot=max(newest - back, 0),
        write_set=list(dict.fromkeys(_item(chance, workload) for _ in range(count))),
        read_set=list(dict.fromkeys(_item(chance, workload) for _ in range(reads))),
        gtid=Gtid(source, chance.randint(1, 2 * number)) if brought else None,
    )


def _origin(chance: random.Random, workload: Workload) -> str:
    members = range(1, workload.members + 1)
    if not workload.load:
        return f"m{chance.choice(members)}"
    return f"m{chance.choices(members, workload.load)[0]}"


def _item(chance: random.Random, workload: Workload) -> int:
    number = min(chance.randrange(workload.items), chance.randrange(workload.items))
    return (number * 0x9E3779B97F4A7C15 - 1) % 2**64
