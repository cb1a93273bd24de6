"""What follows from another finding is told below it, and not counted beside it.

A finding follows from another one of its history at the same place, of which the first in `_FIRST`
is the cause; and one behind a row that was changed may follow from that: the row is not what was
decided, and what the rule expects of the next ones was derived from it, and of every later report
what a chain or a digest expects. Wrong settings may be behind all that comes. All are in the table.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...history.schema import LOG_SEQUENCE_SHIFT
from .findings import Code, Finding, Severity
from .result import Result

Name = tuple[Code, str, str, int]
"""Code, observer, history and place of a finding: no other one has them."""
_CHANGED = (
    Code.SETTINGS_WRONG,
    Code.RECORD_EDITED,
    Code.MEMBERS_DISAGREE,
    Code.ORIGIN_WRONG,
    Code.REPORT_WRONG,
)
"""Findings of what was changed, or is not what was decided; the first tells most about a row."""
_CODES = tuple(Code)
_FIRST = (*_CHANGED[:3], Code.RECORD_MISSING, Code.RECORD_REORDERED)
FOLLOWS_MESSAGES = 10_000
"""Messages of the log in which the rule may still expect something else because of a changed row:
by then its version is stable everywhere, and no snapshot is older."""
_FOR_GOOD = {Code.REPORT_WRONG, Code.DIGEST_WRONG}
_BY_THEMSELVES = {
    *_CHANGED[:3],
    Code.RECORD_MISSING,
    Code.RECORD_REORDERED,
    Code.HISTORY_CUT,
    Code.APPLIED_TOGETHER,
    Code.APPLIED_OUT_OF_ORDER,
    Code.APPLIED_TOO_SOON,
}
"""Findings that follow from no row before theirs."""
_IN_DIGESTS = {
    Code.CONFLICT_MISSED,
    Code.CONFLICT_FALSE,
    Code.WINNER_WRONG,
    Code.TOO_OLD_MISSED,
    Code.TOO_OLD_FALSE,
    Code.REFUSAL_MISSED,
    Code.REFUSAL_FALSE,
    Code.GTID_DUPLICATE,
    Code.GTID_GAP,
    Code.GTID_ORDER,
    Code.VERSION_WRONG,
    Code.STABLE_SET_WRONG,
    Code.MEMBERS_DISAGREE,
    Code.RECORD_MISSING,
    Code.RECORD_EDITED,
    Code.RECORD_REORDERED,
    Code.REPORT_WRONG,
}
"""Findings about what the group's digests cover: a wrong digest follows from them."""


class Told(NamedTuple):
    """The findings of all jobs, each once, in the order of their places; how many of each code
    there are that follow from no other one; and those that follow from one, by its name.
    """

    findings: list[Finding]
    counts: "Counter[str]"
    following: dict[Name, list[Finding]]


def told_once(results: Sequence[Result]) -> Told:
    """Returns the findings of all jobs, with what follows from each. Of a code with more findings
    than were kept, as large a part of the others is taken to follow.
    """
    counts: Counter[str] = Counter()
    found: dict[Name, Finding] = {}
    for result in results:
        new: dict[Name, Finding] = {}
        for finding in result.findings:
            if finding[:4] not in found:
                new.setdefault(finding[:4], finding)
        found |= new
        counts += left_of(result.counts, result.findings, new.values())
    of_history: dict[tuple[str, str], list[Finding]] = {}
    for finding in found.values():
        of_history.setdefault(finding[1:3], []).append(finding)
    told: list[Finding] = []
    following: dict[Name, list[Finding]] = {}
    for mine in of_history.values():
        settings: Finding | None = None
        changed: Finding | None = None
        in_digest: Finding | None = None
        last: Finding | None = None
        for finding in sorted(mine, key=_order):
            code = finding.code
            if last is not None and last.place == finding.place:
                cause: Finding | None = last
            elif code is Code.DIGEST_WRONG and in_digest is not None:
                cause = in_digest
            elif code in _BY_THEMSELVES:
                cause = None
            else:
                cause = changed if changed and _reaches(changed, finding) else settings
            if code in _IN_DIGESTS:
                in_digest = in_digest or cause or finding
            if cause is not None:
                following.setdefault(cause[:4], []).append(finding)
                continue
            told.append(finding)
            last = finding
            if code in _CHANGED:
                changed = finding
            if code is Code.SETTINGS_WRONG:
                settings = finding
    told.sort(key=lambda each: (each.place, each.observer, each.history))
    return Told(told, left_of(counts, found.values(), told), following)


def _reaches(changed: Finding, finding: Finding) -> bool:
    """Returns whether a finding may follow from a changed row before it."""
    begin, end = (each.place >> LOG_SEQUENCE_SHIFT for each in (changed, finding))
    return finding.code in _FOR_GOOD or end - begin <= FOLLOWS_MESSAGES


def _order(finding: Finding) -> tuple[int, int, bool, int]:
    """Returns the key that sorts the findings of a history: of one place the cause comes first."""
    code = finding.code
    rank = _FIRST.index(code) if code in _FIRST else len(_FIRST)
    return finding.place, rank, finding.severity is not Severity.ERROR, _CODES.index(code)


def _share(count: int, left: int, kept: int) -> int:
    """Returns the number of `count` findings that are left, if `left` are of those that were kept.

    >>> _share(7, 5, 7), _share(23_000, 5_000, 10_000), _share(3, 0, 0)
    (5, 11500, 3)
    """
    return -(-count * left // kept) if kept else count


def left_of(
    counts: Mapping[str, int], kept: Iterable[Finding], left: Iterable[Finding]
) -> "Counter[str]":
    """Counts the findings that are left, as `_share` has it where not all were kept."""
    before = Counter(each.code.value for each in kept)
    after = Counter(each.code.value for each in left)
    return +Counter({code: _share(n, after[code], before[code]) for code, n in counts.items()})
