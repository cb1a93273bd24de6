"""Compares certification logs with what a member holds: a further witness, of members given up too.

A certification log names each transaction that its member has certified, with position and GTID.
Where binary logs are off or purged, it still shows whether two members have read the same. Where a
member's data folder is lost, it shows what only that member had. A row that does not fit the chain
of its history proves nothing.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
from pyarrow import parquet

from ...applier.queue.relay_group import RelayEntry
from ...certifier.errors import InvalidSetting
from ...certifier.gtid import Gtid
from ...certifier.gtid_set import GtidSet
from ...certifier.history.schema import (
    CHAIN_START,
    RecordKind,
    Verdict,
    link,
    position_at,
    text_of,
)
from ...certifier.position import log_sequence_of
from ..errors.rebuild import DamagedHistory
from .contradictions import Contradiction
from .holding import Holding, OnRead

ROWS = 1_024
_NAME = re.compile(r"(.+)-([0-9a-f]{16})-[0-9a-f]{16}\.parquet")


class HistoryPart(NamedTuple):
    """The contents of one history. `compared`: transactions that the other member also has whole;
    `lacking`: GTIDs that this one has certified behind all that the other one has.
    """

    observer: str
    history: str
    log_sequence: int
    compared: int
    lacking: GtidSet
    contradiction: Contradiction | None


def histories_in(folders: Iterable[Path]) -> dict[tuple[str, str], list[Path]]:
    """Returns the files of each history below some folders, in order, by member and history.

    Raises InvalidSetting: A folder has none.
    """
    found: dict[tuple[str, str], list[Path]] = {}
    for folder in folders:
        named = [(path, _NAME.fullmatch(path.name)) for path in folder.rglob("*.parquet")]
        for path, name in sorted((path, name) for path, name in named if name):
            found.setdefault((name[1], name[2]), []).append(path)
        if not any(name for _, name in named):
            expected = "a folder with files of a member's certification log"
            raise InvalidSetting(name="--certification-log", value=str(folder), expected=expected)
    return found


def compare_history(
    longest: Holding, name: tuple[str, str], files: Iterable[Path], on_read: OnRead
) -> HistoryPart:
    """Compares a history with the member that holds most.

    Raises DamagedHistory: A file cannot be read, or a row does not fit the chain.
    """
    observer, history = name
    entries = longest.entries()
    entry = next(entries, None)
    executed, lacking, compared, last = longest.executed, GtidSet(), 0, 0
    for row in _rows(files, on_read):
        last = log_sequence_of(position_at(row["place"]))
        if row["kind"] != RecordKind.TRANSACTION or row["verdict"] != Verdict.CERTIFIED:
            continue
        gtid, version = Gtid(row["gtid_source"], row["gtid_number"]), row["version"]
        while entry and entry.version < version:
            entry = next(entries, None)
        compared += entry is not None and entry.version == version
        if version > longest.last_version and gtid not in executed:
            lacking.add(gtid)
        elif what := _differing(observer, row, gtid, longest, entry):
            found = Contradiction(longest.name, observer, last, what)
            return HistoryPart(observer, history, last, compared, lacking, found)
    return HistoryPart(observer, history, last, compared, lacking, None)


def _differing(
    observer: str, row: dict[str, Any], gtid: Gtid, longest: Holding, entry: RelayEntry | None
) -> str:
    """Returns the difference between a row and the longest member's transaction of that version, in
    words; empty: none.
    """
    version, position = row["version"], position_at(row["place"])
    if entry is None or entry.version != version:
        is_executed = gtid in longest.executed
        has = "" if is_executed else f"{longest.name} has not executed that"
    else:
        is_same = (entry.gtid, entry.position) == (gtid, position)
        at = log_sequence_of(entry.position)
        has = "" if is_same else f"{longest.name} has {entry.gtid} of message {at}"
    return has and (
        f"the certification log of {observer} has transaction {version} as {gtid}, {has}"
    )


def _rows(files: Iterable[Path], on_read: OnRead) -> Iterator[dict[str, Any]]:
    """Yields the rows of a history, each proved by the chain; the first of what is left of one is
    taken as it is.
    """
    number, chain = 0, CHAIN_START
    for path in files:
        try:
            for batch in parquet.ParquetFile(path).iter_batches(ROWS):
                for row in batch.to_pylist():
                    is_first = not number and row["number"] > 1
                    fits = row["number"] == number + 1 and row["chain"] == link(chain, text_of(row))
                    if not is_first and not fits:
                        raise DamagedHistory(path=str(path), number=row["number"])
                    number, chain = row["number"], row["chain"]
                    yield row
                on_read(len(batch))
        except (OSError, pyarrow.ArrowException) as error:
            raise DamagedHistory(path=f"{path} ({error})", number=number + 1) from error
