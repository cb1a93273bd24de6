"""What histories say of themselves: who wrote them, whose they are, under which settings.

What a history is compared with follows from it, so nobody may choose it: a copy that calls itself
a binary log would be compared with nobody. Its rows say who wrote it (`rows/surveyed_history.py`),
its local transactions whose it is, and the other histories of its group under which settings.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import Row

from ...history.schema import RecordKind, Source
from ..answers.findings import Code, Finding
from ..rows.certification_log import Log
from ..rows.survey import TELLING
from ..rows.surveyed_history import History, by_name, parsed

_Value = frozenset[tuple[str, str]]
_STATE = ("version", "stable_version", "collected_version")
"""What members have alike where they begin at the same place."""


class _Telling(NamedTuple):
    """A row with settings; `value`: these without the source, which exports have another of.
    `begin`: the state that a history begins with there.
    """

    place: int
    kind: str
    source: str
    value: _Value
    begin: _Value


def wrong_settings(log: Log, groups: Iterable[Sequence[History]]) -> Iterator[Finding]:
    """Yields the rows with settings that are not those of who wrote the history, or not those that
    most histories of its group have then. Of two at one place, the later one by name differs.
    """
    turns = by_name(log.surveyed.turns)
    told = {
        history.h: [_telling(row) for row in turns.get(history.name, ()) if row["kind"] in TELLING]
        for history in log.histories
    }
    group_of = {history.h: group for group in groups for history in group}
    for history in log.histories:
        for row in told[history.h]:
            known = _in_force(row, history, group_of.get(history.h, ()), told)
            wanted = {**dict(known), "source": history.source.value}
            if history.group_source is not None:
                wanted["group_source"] = history.group_source
            begin = [pair for pair in row.begin if pair[0] in wanted]
            found = {**dict(row.value), **dict(begin), "source": row.source}
            # A release may write settings that another one does not know.
            both = wanted.keys() & found.keys()
            names = sorted(name for name in both if wanted[name] != found[name])
            if names:
                texts = (_text(wanted, names), _text(found, names), _why(history, known, row))
                yield Finding(Code.SETTINGS_WRONG, *history.name, row.place, *texts)


class Foreign(NamedTuple):
    """Local transactions of a history that another member sent: how many of how many, and place and
    sender of the first.
    """

    place: int
    sender: str
    foreign: int
    locals: int


def foreign_locals(log: Log, kept: Mapping[int, Foreign]) -> dict[int, Foreign]:
    """Returns by history how many of its local transactions another member sent, with those that
    the audit before has `kept`.
    """
    files, found = by_name(log.files), dict(kept)
    for history in log.histories:
        before = kept.get(history.h, Foreign(0, "", 0, 0))
        mine = files.get(history.name, ())
        foreign = [row for row in mine if row["foreign_locals"]]
        first = min(foreign, key=lambda row: row["first_foreign_at"], default=None)
        place, sender = before.place, before.sender
        if first is not None and not before.foreign:
            place, sender = first["first_foreign_at"], first["first_foreign"] or "none"
        found[history.h] = Foreign(
            place,
            sender,
            before.foreign + sum(row["foreign_locals"] for row in foreign),
            before.locals + sum(row["locals"] for row in mine),
        )
    return found


def wrong_origin(history: History, foreign: Foreign) -> Finding:
    """Returns the finding at the first of them."""
    witness = (
        f"{foreign.foreign} of {foreign.locals} transactions that this history calls its member's "
        "own name another sender"
    )
    texts = history.observer, foreign.sender, witness
    return Finding(Code.ORIGIN_WRONG, *history.name, foreign.place, *texts)


def _telling(row: Row) -> _Telling:
    settings = {name: str(value) for name, value in parsed(row["settings"]).items()}
    source = settings.pop("source", "none")
    is_start = row["kind"] == RecordKind.START
    begin = frozenset((name, str(row[name])) for name in _STATE) if is_start else frozenset()
    return _Telling(row["place"], row["kind"], source, frozenset(settings.items()), begin)


def _in_force(
    row: _Telling, own: History, group: Sequence[History], told: Mapping[int, Sequence[_Telling]]
) -> _Value:
    """Returns the settings that most histories of a group have at the place of one's row, and the
    state of those that begin there. A change of settings is at the same place in all; a history
    that begins later begins with those in force, which two others have to say: one alone may lack
    the last change.
    """
    votes: Counter[_Value] = Counter()
    mine, is_shared = row.value, False
    for each in group:
        before = [other for other in told[each.h] if other.place <= row.place <= each.last_place]
        if each is own or not before:
            continue
        other = before[-1]
        is_here = other.place == row.place
        if is_here:
            mine, is_shared = row.value | row.begin, True
        if is_here or row.begin:
            outvotes = each.source is Source.TOTAL_ORDER
            value = other.value | other.begin if is_here else other.value
            votes[value] += len(group) if outvotes else 1
    others, count = votes.most_common(1)[0] if votes else (mine, 0)
    others_first = is_shared and group[0] is not own
    return others if count > votes[mine] + 1 - others_first else mine


def _text(values: Mapping[str, str], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={values[name]}" for name in names)


def _why(history: History, known: _Value, row: _Telling) -> str:
    """Returns the reason that settings are wrong, for a person."""
    if known in (row.value, row.value | row.begin):
        return f"its rows are such as source {history.source.value} writes for that group"
    return f"so most histories of group {history.group_source} have it here"
