"""The histories of a certification log: what each one is, from the survey of its files, and from
what an audit before has kept of it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

import polars as pl
from pyspark.sql import Row

from ...history.schema import (
    FORMAT_VERSION,
    INTEGER_MAX,
    RecordKind,
    Source,
    Verdict,
)
from ..answers.errors import UnreadableLog
from .critical_path import Ints
from .kept import AuditWhole, KeptHistory
from .pace import Pace
from .survey import BEGIN, PACED, TELLING

Key: TypeAlias = tuple[str, str]
"""Observer and history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One history: `h` is its number here, `rows` its rows, `first_place` where it begins.

    `start` is its first row if that is of kind START: else earlier files are not here, and what
    was before is not known. `settings` are those of its beginning, or of the first change; if
    neither is here, its group is that of the GTIDs which were assigned, and the rest is as the
    group's other histories have it then; one without any snapshot is of a binary log.
    `told`: the numbers of rows with settings, ascending, with these.
    `resets`: the numbers of rows at which its clock began again, ascending; `lost_resets`: those
    behind missing files in which it must have. `joined_place`: where its member first joined.
    `pace`: of its applier, which took the times `applied_us` (first, last) for what it has ticks
    of. `collected`: how many collections, what they purged, how many closed the window.
    `verdicts`: transactions by verdict; `stamped` of them have a sequence number, `read_sets` a
    read set, `gtid_snapshots` a snapshot that is a GTID set. `elsewhere`: rows of
    transactions executed elsewhere. `before`: what an audit before has kept of it; the sums include
    that.
    """

    h: int
    observer: str
    history: str
    rows: int
    last_number: int
    transactions: int
    first_place: int
    last_place: int
    first_version: int
    first_us: int | None
    last_us: int | None
    joined_place: int | None
    start: Mapping[str, int] | None
    settings: Mapping[str, object]
    told: Sequence[tuple[int, Mapping[str, object]]]
    resets: Sequence[int]
    lost_resets: Sequence[int]
    verdicts: Mapping[Verdict, int]
    stamped: int
    read_sets: int
    gtid_snapshots: int
    elsewhere: int
    certified_read_sets: int
    first_stamp: int | None
    pace: Pace
    applied_us: tuple[int, int]
    collected: Mapping[str, int]
    collections: tuple[Ints, Ints]
    before: KeptHistory | None

    @property
    def since(self) -> int:
        """Number of the last row that an audit before has audited; 0: of none."""
        return self.before.since if self.before else 0

    @property
    def name(self) -> tuple[str, str]:
        """Name in findings: observer and history."""
        return self.observer, self.history

    @property
    def source(self) -> Source:
        """Writer of the history; a member, if the settings do not have it."""
        return source_of(self.settings)

    @property
    def group_source(self) -> str | None:
        """UUID of its group, if that is known."""
        group = self.settings.get("group_source")
        return None if group is None else str(group)

    @property
    def block_size_max(self) -> int:
        """Most GTID numbers that members reserved at a time, as far as it is known."""
        return max((block_size(settings) for _, settings in self.told), default=0)

    @property
    def start_version(self) -> int:
        """Certified transactions before it begins, or an upper bound of them."""
        return self.start["version"] if self.start else self.first_version

    @property
    def start_sequence(self) -> int:
        """Last sequence number assigned before it begins."""
        return self.start["sequence_number"] if self.start else 0

    @property
    def last_sequence_before(self) -> int:
        """Last sequence number assigned before it begins; if that is not recorded, the one before
        its first.
        """
        if self.start or self.first_stamp is None:
            return self.start_sequence
        return self.first_stamp - 1


def block_size(settings: Mapping[str, object]) -> int:
    """Returns the number of GTIDs that members reserve at a time; 0: not known."""
    size = settings.get("gtid_assignment_block_size", 0)
    return size if isinstance(size, int) else 0


def by_name(rows: pl.DataFrame) -> dict[Key, list[Row]]:
    """Returns the rows of each history."""
    found: dict[Key, list[Row]] = {}
    for row in rows.iter_rows(named=True):
        found.setdefault((row["observer"], row["history"]), []).append(Row(**row))
    return found


def settings_of(
    files: Mapping[Key, Sequence[Row]],
    turns: Mapping[Key, Sequence[Row]],
    assigned: pl.DataFrame,
    before: Mapping[Key, KeptHistory],
) -> dict[Key, Mapping[str, object]]:
    """Returns the settings at the begin of each history; source and group as its rows show them.
    `assigned`: how many GTIDs of a source the group assigned, ascending.

    Raises:
        AuditWhole: the audit before did not know them.
    """
    known = {
        key: [
            (row["place"] or 0, parsed(row["settings"])) for row in rows if row["kind"] in TELLING
        ]
        for key, rows in turns.items()
    }
    settings = {key: next((each for _, each in known.get(key, ())), {}) for key in files}
    groups = {key: mine[-1]["gtid_source"] for key, mine in by_name(assigned).items()}
    for key, mine in settings.items():
        if key in before:
            # Source and group may have been corrected then.
            told = {name: mine[name] for name in mine.keys() - {"source", "group_source"}}
            if not told.items() <= before[key].settings.items():
                raise AuditWhole(f"history {key[1]} of {key[0]} tells its settings only now")
            if key in groups and not _names_group(before[key].settings):
                raise AuditWhole(f"history {key[1]} of {key[0]} tells its group only now")
            settings[key] = before[key].settings
            continue
        source = _source(mine, files[key])
        shown = {"source": source.value}
        if source is Source.BINARY_LOG:
            settings[key] = shown
            continue
        if key in groups:
            shown["group_source"] = groups[key]
        if not shown.items() <= mine.items():
            place = min(row["first_place"] for row in files[key])
            in_force = _settings_at(place, groups[key], known.values()) if key in groups else {}
            settings[key] = {**in_force, **mine, **shown}
    return settings


def source_of(settings: Mapping[str, object]) -> Source:
    """Returns the writer that settings name; a member, if they do not have it."""
    told = settings.get("source")
    return next((source for source in Source if source == told), Source.MEMBER)


def _source(settings: Mapping[str, object], files: Sequence[Row]) -> Source:
    """Returns the writer of a history: the one that its settings name, unless it has rows that only
    a member writes, or only who certifies. One without settings is of a binary log if it has
    transactions that nobody certified.
    """
    told = source_of(settings)
    if any(row["of_member"] for row in files):
        return Source.MEMBER
    if any(row["of_certifier"] for row in files):
        return Source.TOTAL_ORDER if told is Source.BINARY_LOG else told
    has_transactions = any(row["transactions"] for row in files)
    return told if _names_group(settings) or not has_transactions else Source.BINARY_LOG


def check_files(key: Key, files: Sequence[Row]) -> None:
    """Raises UnreadableLog if a file of a history is not one, or is there twice."""
    first: dict[int, str] = {}
    for row in sorted(files, key=lambda row: row["file"]):
        file = row["file"].removeprefix("file://")
        version = row["format_version"]
        if version is None or None in key:
            problem = f"{file} is no certification log: it has rows without format or observer"
            raise UnreadableLog(problem=problem, advice="restore the file, or leave it out")
        if version != FORMAT_VERSION:
            problem = f"{file} is of format {version}, this release reads {FORMAT_VERSION}"
            advice = "use the release that wrote it"
            raise UnreadableLog(problem=problem, advice=advice)
        if row["unplaced"]:
            problem = f"{file} has rows without number, place or kind: {row['unplaced']}"
            raise UnreadableLog(problem=problem, advice="restore the file, or leave it out")
        if row["first_number"] in first:
            raise UnreadableLog(
                problem=f"history {key[1]} of {key[0]} has row {row['first_number']} twice, at the "
                f"beginning of {first[row['first_number']]} and of {file}",
                advice="leave one out if it is a copy; else export one of them again under "
                "another name (--observer)",
            )
        first[row["first_number"]] = file


def check_goes_on(
    key: Key,
    files: Sequence[Row],
    settings: Mapping[str, object],
    histories: Mapping[Key, KeptHistory],
) -> None:
    """Raises AuditWhole if new files of a history ask for rows that are not kept."""
    if not files:
        return
    name = f"history {key[1]} of {key[0]}"
    if any(row["gtid_snapshots"] for row in files):
        raise AuditWhole(f"{name} has snapshots that are GTID sets")
    first = min(files, key=itemgetter("first_number"))
    before = histories.get(key)
    if before is None:
        group = settings.get("group_source")
        places = [
            each.whole_place
            for each in histories.values()
            if group is not None and each.settings.get("group_source") == group
        ]
        if first["first_place"] < max(places, default=0):
            raise AuditWhole(f"{name} is new, and begins before what was kept of its group")
        return
    if first["first_number"] <= before.since:
        file = first["file"].removeprefix("file://")
        raise AuditWhole(f"{file} has rows of {name} that were audited before")
    if not before.resumes:
        raise AuditWhole(f"{name} goes on, which had ended long before its group")
    tick = min((row["first_tick"] for row in files if row["first_tick"] is not None), default=None)
    if tick is not None and tick < before.tick:
        raise AuditWhole(f"{name} ran a transaction beside rows that were not kept")


def least(files: Sequence[Row], name: str, before: KeptHistory | None) -> int:
    """Returns the least number of a history's files, and of what was kept of it."""
    known = [row[name] for row in files if row[name] is not None]
    return min([*known, *([getattr(before, name)] if before else [])], default=0)


def history_of(
    h: int,
    key: Key,
    files: Sequence[Row],
    turns: Sequence[Row],
    settings: Mapping[str, object],
    collections: pl.DataFrame,
    before: KeptHistory | None,
) -> History:
    """Returns a history from the rows of its files, from the rows at which it turned, and from what
    an audit before has kept of it.
    """
    start = next((row for row in turns if row["kind"] == RecordKind.START), None)
    joined = [row for row in turns if row["kind"] == RecordKind.VIEW_CHANGE]
    begun = {row["number"] for row in turns if row["kind"] != RecordKind.SETTINGS}
    lost = _lost_resets(files, before)
    summed = before.counts if before else {}

    def known(name: str) -> list[int]:
        return [row[name] for row in files if row[name] is not None]

    def total(name: str) -> int:
        return sum(known(name)) + summed.get(name, 0)

    first_us = known("first_us")
    if before and before.first_us is not None:
        first_us.append(before.first_us)
    first_stamp = next((at for row in files if (at := row["first_stamp"]) is not None), None)
    if before and before.first_stamp is not None:
        first_stamp = before.first_stamp
    return History(
        h=h,
        observer=key[0],
        history=key[1],
        rows=total("rows"),
        last_number=max([*known("last_number"), before.since if before else 0]),
        transactions=total("transactions"),
        first_place=least(files, "first_place", before),
        last_place=max([*known("last_place"), before.last_place if before else 0]),
        first_version=least(files, "first_version", before),
        first_us=min(first_us, default=None),
        last_us=max(known("last_us"), default=None),
        joined_place=joined[0]["place"] if joined else None,
        start={name: start[name] for name in BEGIN} if start else None,
        settings=settings,
        told=_told(turns, settings),
        # A clock that begins with the history has not begun again.
        resets=sorted(begun.union(lost) - {least(files, "first_number", before)}),
        lost_resets=lost,
        verdicts={verdict: total(verdict.value) for verdict in Verdict},
        stamped=total("stamped"),
        read_sets=total("read_sets"),
        gtid_snapshots=total("gtid_snapshots"),
        elsewhere=total("elsewhere"),
        certified_read_sets=total("certified_read_sets"),
        pace=_pace(h, known),
        applied_us=(
            min(known("applied_first_us"), default=0),
            max(known("applied_last_us"), default=0),
        ),
        collected={name: sum(known(name)) for name in ("collections", "purged_items", "closed")},
        first_stamp=first_stamp,
        collections=_collections(key, collections, min(known("first_set"), default=INTEGER_MAX)),
        before=before,
    )


def _told(
    turns: Sequence[Row], settings: Mapping[str, object]
) -> list[tuple[int, Mapping[str, object]]]:
    """Returns the numbers of rows with settings, ascending, with these; the first has those of the
    history, whatever it tells.
    """
    told = [(row["number"], parsed(row["settings"])) for row in turns if row["kind"] in TELLING]
    return [(number, {**each, **settings}) for number, each in told[:1]] + told[1:]


def _pace(h: int, known: Callable[[str], list[int]]) -> Pace:
    """Returns the pace of a history, of whose files a column is `known`."""
    return Pace(
        h=h,
        rows=sum(known("rows")),
        **{name: sum(known(f"paced_{name}")) for name in PACED},
        first_us=min(known("paced_first_us"), default=None),
        last_us=max(known("paced_last_us"), default=None),
        first_number=min(known("paced_first_number"), default=0),
        last_number=max(known("paced_last_number"), default=0),
    )


def _collections(key: Key, rows: pl.DataFrame, before: int) -> tuple[Ints, Ints]:
    """Returns the numbers and the versions of a history's collections before a row."""
    is_mine = (pl.col("observer") == key[0]) & (pl.col("history") == key[1])
    mine = rows.filter(is_mine & (pl.col("number") < before)).sort("number")
    return mine["number"].to_numpy(), mine["collected_version"].to_numpy()


def _lost_resets(files: Sequence[Row], before: KeptHistory | None) -> list[int]:
    """Returns the first row after each gap between files over which stamps do not ascend."""
    found = list(before.lost_resets) if before else []
    last_stamp = before.last_stamp if before else 0
    next_number = before.since + 1 if before else None
    behind_gap = None
    for row in sorted(files, key=itemgetter("first_number")):
        if next_number is not None and row["first_number"] > next_number:
            behind_gap = row["first_number"]
        # Files without stamps say nothing: the gap stays open until one has some.
        if row["first_stamp"] is not None:
            if behind_gap is not None and row["first_stamp"] <= last_stamp:
                found.append(behind_gap)
            behind_gap, last_stamp = None, row["last_stamp"]
        next_number = row["last_number"] + 1
    return found


def _names_group(settings: Mapping[str, object]) -> bool:
    """Returns whether settings name the history's group; a binary log belongs to none."""
    return "group_source" in settings or settings.get("source") == Source.BINARY_LOG


def parsed(settings: str | None) -> Mapping[str, object]:
    """Returns the settings of a row, parsed; none if somebody has changed their form."""
    try:
        parsed = json.loads(settings or "{}")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _settings_at(
    place: int, group: str, known: Iterable[Sequence[tuple[int, Mapping[str, object]]]]
) -> Mapping[str, object]:
    """Returns the settings of a group at a place, by its histories. If none has them, the block
    size is 0: not known.
    """
    told = [(at, each) for mine in known for at, each in mine if each.get("group_source") == group]
    earlier = [item for item in told if item[0] <= place] or sorted(told, key=itemgetter(0))[:1]
    latest = max(earlier, key=itemgetter(0), default=(0, {"gtid_assignment_block_size": 0}))[1]
    return {**latest, "group_source": group, "source": Source.MEMBER.value}
