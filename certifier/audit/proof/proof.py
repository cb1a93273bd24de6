"""Proof: checks the chain of each history, and the chains that its member reported to the group.

Each row's link is computed by itself (`links.py`); chains and digests that the members exchanged
while the group ran are compared with the rows (`reports.py`, `digests.py`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...history.schema import position_at
from ...position import log_sequence_of
from ..answers.findings import Code, Finding
from ..answers.result import JsonObject, Result
from ..rows.checks import (
    Found,
    FoundAll,
    Note,
    as_kept,
    collected,
    from_kept,
    merged,
)
from ..rows.consequences import (
    behind_gaps,
    behind_to_keep,
    without_consequences,
)
from ..rows.gaps import gaps_of
from ..rows.kept import AuditWhole
from ..rows.log import Log
from ..rows.tails import tails_of
from ..spark.walks import concatenated
from .digests import (
    DIGEST,
    Differing,
    differing_digests,
    kept_to,
)
from .links import wrong_links
from .reports import (
    BEHIND,
    COMPARED,
    CUT,
    UNKNOWN,
    wrong_reports,
)


def run(log: Log) -> Result:
    """Checks links, gaps and moved rows of each history, and chains against exchanged ones."""
    before = log.before("proof")
    earlier = from_kept(log, before)
    new = collected(log, concatenated(wrong_links(log), wrong_reports(log, {})))
    if any(note.code == UNKNOWN for note in new.notes):
        raise AuditWhole("a member has reported a place of its history that was not kept")
    new = _without_gaps(log, new, earlier)
    all_found = merged([earlier, _told_first(new, earlier)])
    behind = behind_gaps(log, all_found.found, before)
    found = without_consequences(log, all_found, behind)
    result = Result([each.finding for each in found.found], found.counts)
    reported = [note for note in new.notes if note.code == DIGEST]
    ends = {h: kept_to(each.place) for h, each in tails_of(log).items()} if log.keeps else {}
    digests = differing_digests(log, reported, _kept_digests(log, before), ends)
    told = _digests_told(log, digests.differing, before)
    ended = _ended_early(log, new.notes, before)
    result.add(told)
    result.add([_cut_finding(log, note) for note in ended])
    edited = [each for each in all_found.found if each.finding.code is Code.RECORD_EDITED]
    result.summary = _summary(log, new.notes, digests.counts, edited)
    if log.keeps:
        names = [each.name for each in log.histories]
        result.kept = {
            **as_kept(all_found),
            **behind_to_keep(log, behind),
            "digests": [[names[h], digest] for h, digest in digests.ends.items()],
            "differing": told,
            "cuts": [[names[note.h], note.place, note.told, note.text] for note in ended],
        }
    return result


def _told_first(new: FoundAll, before: FoundAll) -> FoundAll:
    """Returns the new findings without chains that were told again of a place."""
    known = {each.finding[:4] for each in before.found}
    again = [each for each in new.found if each.finding[:4] in known]
    left = [each for each in new.found if each.finding[:4] not in known]
    counts = new.counts - Counter(each.finding.code.value for each in again)
    return FoundAll(left, counts, new.notes)


def _kept_digests(log: Log, before: JsonObject) -> dict[int, int | None]:
    """Returns the digests that the audit before has kept, by history."""
    kept = before.get("digests", [])
    assert isinstance(kept, list)
    return {log.number_of(name): digest for name, digest in kept}


def _digests_told(log: Log, differing: Sequence[Differing], before: JsonObject) -> list[Finding]:
    """Returns the first wrong digest of each history."""
    kept = before.get("differing", [])
    assert isinstance(kept, list)
    told = [Finding(Code(code), *rest) for code, *rest in kept]
    known = {each[1:3] for each in told}
    return told + [
        _digest_finding(log, each)
        for each in differing
        if log.histories[each.told.h].name not in known
    ]


def _without_gaps(log: Log, found: FoundAll, earlier: FoundAll) -> FoundAll:
    """Returns the findings without reports about rows that are missing, which is found already."""
    wrong, missing = Code.REPORT_WRONG, Code.RECORD_MISSING.value
    if not (found.counts[wrong.value] and (found.counts[missing] or earlier.counts[missing])):
        return found
    others = [each for each in found.found if each.finding.code is not wrong]
    counts = Counter({code: count for code, count in found.counts.items() if code != wrong})
    outside = collected(log, wrong_reports(log, gaps_of(log)))
    return merged([FoundAll(others, counts), outside])._replace(notes=found.notes)


def _digest_finding(log: Log, differing: Differing) -> Finding:
    told = differing.told
    return Finding(
        code=Code.DIGEST_WRONG,
        observer=log.histories[told.h].observer,
        history=log.histories[told.h].history,
        place=told.place,
        expected=f"{told.digest:016x}",
        found=f"{differing.computed:016x}",
        witness=f"{told.origin} told the group this digest of all decisions up to message "
        f"{told.sequence} of the log; those that are recorded here have another",
    )


def _ended_early(log: Log, notes: Iterable[Note], before: JsonObject) -> list[Note]:
    """Returns of each history that ends too early the last note of that."""
    kept = before.get("cuts", [])
    assert isinstance(kept, list)
    ends: dict[str, int] = {}
    for each in log.histories:
        ends[each.observer] = max(each.last_place, ends.get(each.observer, 0))
    earlier = [
        Note(CUT, log.number_of(name), 0, place, told, text, 0, 0)
        for name, place, told, text in kept
        # Files that are new since may have the rows that were lacking.
        if place > ends[name[0]]
    ]
    cuts = [*earlier, *(note for note in notes if note.code == CUT)]
    last = {note.h: note for note in sorted(cuts, key=_place)}
    return [last[h] for h in sorted(last)]


def _cut_finding(log: Log, note: Note) -> Finding:
    """Returns the finding at the last row of a history that ends too early."""
    history = log.histories[note.h]
    end, written = (log_sequence_of(position_at(each)) for each in (history.last_place, note.place))
    name = history.observer
    return Finding(
        code=Code.HISTORY_CUT,
        observer=name,
        history=history.history,
        place=history.last_place,
        expected=f"rows up to message {written} of the log, with the chain {note.told}",
        found=f"none after message {end}",
        witness=f"{name} told the group that its log was written so far, as recorded "
        f"in the histories of {note.text}: files are not here, or rows were cut off; "
        "if the logs were copied while members ran, copy this one again",
    )


def _place(note: Note) -> int:
    return note.place


def _summary(
    log: Log, notes: Sequence[Note], digests: Mapping[int, int], edited: Sequence[Found]
) -> JsonObject:
    """Returns the summary. `reports_behind`: those about places after the end of a history,
    which ends early. `last_place`: the last one up to which all rows fit the chain; none if the
    first does not.
    """
    counts: Counter[tuple[str, int]] = Counter()
    for note in notes:
        counts[note.code, note.h] += note.low
    wrong: dict[int, list[Found]] = {}
    for found in sorted(edited, key=lambda each: each.number):
        wrong.setdefault(found.h, []).append(found)
    return {
        "observers": [
            {
                "observer": each.observer,
                "history": each.history,
                "rows": each.rows,
                "chained": each.rows - len(wrong.get(each.h, ())),
                "reports": counts[COMPARED, each.h],
                "reports_behind": counts[BEHIND, each.h],
                "digests": digests.get(each.h, 0),
                "last_place": wrong[each.h][0].low if each.h in wrong else each.last_place,
            }
            for each in log.histories
        ]
    }
