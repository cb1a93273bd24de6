"""From where on all rows are kept for the next audit.

Of a group they are kept from one place on, in all its histories: what follows may be compared with
them, may have read what they wrote, or may have run beside them. That place is before the end of
each history that may go on, before the newest place and message that its member has reported, and
`VERSIONS` before its end, but not further back than `ROWS_MAX` rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from ...history.schema import LOG_SEQUENCE_SHIFT
from . import states
from .certification_log import Log
from .survey import of_history
from .surveyed_history import History

VERSIONS = 5_000
"""Certified transactions that a later one may be in a cycle with, see `isolation.py`."""
ROWS_MAX = 1 << 18
_FIRST = 0


class Tail(NamedTuple):
    """The end of a history: all its rows from `number` on are kept, among them all of its group
    from `place` on. `resumes`: whether it may go on.
    """

    number: int
    place: int
    resumes: bool


def tails_of(log: Log) -> dict[int, Tail]:
    """Returns the tail of each history."""
    groups: dict[object, list[History]] = {}
    for history in log.histories:
        groups.setdefault(history.group_source or history.name, []).append(history)
    return {h: tail for mine in groups.values() for h, tail in _tails(log, mine).items()}


def _tails(log: Log, histories: Sequence[History]) -> dict[int, Tail]:
    milestones = {
        history.h: of_history(log.surveyed.milestones, history.name) for history in histories
    }
    leader = max(histories, key=lambda history: history.last_place)
    least = _last_before(milestones[leader.h], "number", leader.last_number - ROWS_MAX, "place")
    alive = [history for history in histories if history.last_place >= least]
    wanted = [place for each in alive for place in _wanted(log, each, milestones[each.h])]
    before = max(
        (history.before.whole_place for history in histories if history.before), default=_FIRST
    )
    # Who has reported nothing for as long is gone.
    recent = min((place for place in wanted if place >= least), default=least)
    # The begin of a message: its rows are kept together.
    place = recent >> LOG_SEQUENCE_SHIFT << LOG_SEQUENCE_SHIFT
    place = max(place, before)
    tails = {}
    for history in histories:
        number = _last_before(milestones[history.h], "place", place, "number") or 1
        # The begin of a segment: the rows that have left the state there are kept, too
        # (`state_rows`).
        begin = (number - 1) // states.SEGMENT_ROWS * states.SEGMENT_ROWS + 1
        if history.before:
            begin = max(begin, history.before.whole_from)
        tails[history.h] = Tail(begin, place, resumes=history in alive)
    return tails


def _wanted(log: Log, history: History, milestones: pl.DataFrame) -> list[int]:
    """Returns places from which on rows are wanted, for what may follow a history."""
    newest = milestones["version"].max()
    assert isinstance(newest, int)
    reports = of_history(log.surveyed.reports, history.name)
    messages = (pl.col("reported_sequence") + 1) * (1 << LOG_SEQUENCE_SHIFT)
    return [
        history.last_place,
        _last_before(milestones, "version", newest - VERSIONS, "place"),
        *reports["reported_place"].drop_nulls(),
        *reports.select(messages).to_series().drop_nulls(),
    ]


def _last_before(milestones: pl.DataFrame, name: str, value: int, wanted: str) -> int:
    """Returns the column `wanted` of the last milestone whose column `name` is at most `value`; 0
    if there is none.
    """
    last = milestones.filter(pl.col(name) <= value)[wanted].max()
    return last if isinstance(last, int) else _FIRST
