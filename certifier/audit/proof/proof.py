"""Proof: checks the chain of each history, and the chains that its member reported to the group.

Each link is computed by itself, from a row's own columns and the chain of the row before it.
Somebody who edits a row and chains the rest anew is found by the chains and digests (`digests.py`)
that the members exchanged while the group ran: the other histories have them.

A member reports nothing before it has joined, and nothing about a history that began later: one
whose store was lost reads on from the log's beginning, over the places of the history before. Until
it has joined again nothing was reported about that.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...history.schema import (
    CHAIN_BYTES,
    CHAINED,
    FIELD_SEPARATOR,
    LIST_SEPARATOR,
    RecordKind,
    Source,
    position_at,
)
from ...position import log_sequence_of
from ..answers.findings import ROWS_MAX, Code, Finding
from ..answers.result import JsonObject, Result
from ..rows.certification_log import Log
from ..rows.checks import (
    FOUND,
    Check,
    Found,
    FoundAll,
    Note,
    as_kept,
    collected,
    from_kept,
    is_true,
    merged,
    notes,
    words,
    wrong_rows,
)
from ..rows.coded_columns import kind_name, kind_number, verdict_number
from ..rows.consequences import (
    behind_gaps,
    behind_to_keep,
    without_consequences,
)
from ..rows.gaps import Gaps, gaps_of, in_gap
from ..rows.kept import AuditWhole
from ..rows.order import STATE, STATE_KINDS, order_of_rows
from ..rows.states import KEYS, begins_of_long, segment, with_states
from ..rows.surveyed_history import History
from ..rows.tails import tails_of
from ..spark.walks import Frames, concatenated, in_order, walk, whole
from .digests import (
    DIGEST,
    TOLD,
    Differing,
    differing_digests,
    kept_to,
    parts_of,
    told_digests,
)

_NULL = "null"
_STATES = {**STATE, "previous_chain": pl.col("chain")}
_STATE_KINDS = pl.Schema({**STATE_KINDS, "previous_chain": pl.Binary()})
_LINKED = pl.Schema(
    {
        "h": pl.Int32(),
        "segment": pl.Int32(),
        "number": pl.Int64(),
        "place": pl.Int64(),
        "kind": pl.Int32(),
        "version": pl.Int64(),
        "verdict": pl.Int32(),
        "chain": pl.Binary(),
        "digest": pl.Binary(),
        **TOLD,
    }
)
_COMPARED, _BEHIND, _CUT, _UNKNOWN = "compared", "behind", "cut", "unknown"
"""Notes, by history: how many of its places were reported and compared (`low`), and the number of
the last row that was (`high`); how many that are behind its end and that of its member's other
histories; and the last of these that was told before the files were listed, since a log that is
read while it is written may lack what was told later; and whether a place was reported whose row
was not kept.
"""
_PLACE = ("place", "observer", "group")
_REPORTED = (*_PLACE, "told")


def run(log: Log) -> Result:
    """Checks links, gaps and moved rows of each history, and chains against exchanged ones."""
    before = log.before("proof")
    earlier = from_kept(log, before)
    new = collected(log, concatenated(_wrong_links(log), _wrong_reports(log, {})))
    if any(note.code == _UNKNOWN for note in new.notes):
        raise AuditWhole("a member has reported a place of its history that was not kept")
    new = _as_one(log, _without_gaps(log, new, earlier), earlier)
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
    vouched = _vouched(log, new.notes, before)
    result.summary = _summary(log, new.notes, vouched, digests.counts, edited)
    if log.keeps:
        names = [history.name for history in log.histories]
        result.kept = {
            **as_kept(all_found),
            **behind_to_keep(log, behind),
            "digests": [[names[h], digest] for h, digest in digests.ends.items()],
            "vouched": [[names[h], number] for h, number in vouched.items()],
            "differing": told,
            "cuts": [[names[note.h], note.place, note.told, note.text] for note in ended],
        }
    return result


def _as_one(log: Log, new: FoundAll, earlier: FoundAll) -> FoundAll:
    """Returns the new findings; those of a history of which no row fits its chain, as under another
    observer's name, as one at its first row, unless it was told before.
    """
    edited: dict[int, list[Found]] = {}
    for each in new.found:
        if each.finding.code is Code.RECORD_EDITED:
            edited.setdefault(each.h, []).append(each)
    known = {each.h for each in earlier.found if each.finding.code is Code.RECORD_EDITED}
    left, counts = list(new.found), Counter(new.counts)
    for h, mine in edited.items():
        history = log.histories[h]
        rows = history.rows - (history.before.counts["rows"] if history.before else 0)
        if not 1 < len(mine) == min(rows, ROWS_MAX):
            continue
        for each in mine:
            left.remove(each)
        counts[Code.RECORD_EDITED.value] -= rows
        if h not in known:
            witness = "no row of this history fits its chain: a column of all was changed, such as "
            witness += "the observer, or the chain is another history's"
            first = min(mine, key=lambda each: each.number)
            left.append(first._replace(finding=first.finding._replace(witness=witness)))
            counts[Code.RECORD_EDITED.value] += 1
    return FoundAll(left, +counts, new.notes)


def _told_first(new: FoundAll, before: FoundAll) -> FoundAll:
    """Returns the new findings without chains that were told again of a place."""
    known = {each.finding[:4] for each in before.found}
    again = [each for each in new.found if each.finding[:4] in known]
    left = [each for each in new.found if each.finding[:4] not in known]
    counts = new.counts - Counter(each.finding.code.value for each in again)
    return FoundAll(left, counts, new.notes)


def _vouched(log: Log, noted: Iterable[Note], before: JsonObject) -> dict[int, int]:
    """Returns by history the number of the last row that its member told the group of; 0: none."""
    kept = before.get("vouched", [])
    assert isinstance(kept, list)
    vouched = {history.h: 0 for history in log.histories}
    vouched |= {log.number_of(name): number for name, number in kept}
    for note in noted:
        if note.code == _COMPARED:
            vouched[note.h] = max(note.high, vouched[note.h])
    return vouched


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
    outside = collected(log, _wrong_reports(log, gaps_of(log)))
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


def _ended_early(log: Log, noted: Iterable[Note], before: JsonObject) -> list[Note]:
    """Returns of each history that ends too early the last note of that."""
    kept = before.get("cuts", [])
    assert isinstance(kept, list)
    ends: dict[str, int] = {}
    for history in log.histories:
        ends[history.observer] = max(history.last_place, ends.get(history.observer, 0))
    earlier = [
        Note(_CUT, log.number_of(name), 0, place, told, text, 0, 0)
        for name, place, told, text in kept
        # Files that are new since may have the rows that were lacking.
        if place > ends[name[0]]
    ]
    cuts = [*earlier, *(note for note in noted if note.code == _CUT)]
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
    log: Log,
    noted: Sequence[Note],
    vouched: Mapping[int, int],
    digests: Mapping[int, int],
    edited: Sequence[Found],
) -> JsonObject:
    """Returns the summary. `reports_behind`: those about places after the end of a history,
    which ends early. `unvouched_rows`: those behind the last one that its member told the group of.
    `last_place`: the last one up to which all rows fit the chain; none if the first does not.
    """
    counts: Counter[tuple[str, int]] = Counter()
    for note in noted:
        counts[note.code, note.h] += note.low
    wrong: dict[int, list[Found]] = {}
    for found in sorted(edited, key=lambda each: each.number):
        wrong.setdefault(found.h, []).append(found)
    return {
        "observers": [
            {
                "observer": history.observer,
                "history": history.history,
                "rows": history.rows,
                "chained": history.rows - len(wrong.get(history.h, ())),
                "reports": counts[_COMPARED, history.h],
                "reports_behind": counts[_BEHIND, history.h],
                "unvouched_rows": history.last_number - vouched[history.h]
                if history.source is Source.MEMBER
                else None,
                "digests": digests.get(history.h, 0),
                "last_place": wrong[history.h][0].low if history.h in wrong else history.last_place,
            }
            for history in log.histories
        ]
    }


def _wrong_links(log: Log) -> DataFrame:
    """Returns the findings about links, and the order of rows; and as notes the digests that
    members reported.
    """
    told = log.rows.select(
        "h",
        segment(),
        kind_number().alias("kind_number"),
        verdict_number().alias("verdict_number"),
        *[column.name for column in CHAINED],
        "chain",
    )
    rows = in_order(walk(told, _with_digests, _LINKED), KEYS, ["number"])
    # What a row leaves behind it are columns that it has: no text is hashed for that.
    left = log.rows.select("h", segment(), "number", "version", "place", "chain")
    begins = begins_of_long(log, left, _STATES, _STATE_KINDS)
    return walk(rows, _Links(begins, parts_of(log)).findings, FOUND)


def row_texts(rows: pl.DataFrame) -> pl.Series:
    """Returns the text of each row that is chained (`certifier.history.schema.text_of`)."""
    fields = [
        pl.concat_str(pl.lit(f"{number}="), _word(column.name, column.kind))
        for number, column in enumerate(CHAINED)
        if rows[column.name].null_count() < len(rows)
    ]
    if not fields:
        return pl.Series([""] * len(rows))
    texts = pl.concat_str(fields, separator=FIELD_SEPARATOR, ignore_nulls=True)
    return rows.select(texts).to_series()


def _word(name: str, kind: str) -> pl.Expr:
    """Returns a value as it is chained; also a null element of a list, which no writer makes."""
    value = pl.col(name)
    if kind.startswith("list"):
        element = pl.element()
        word = _counted(element) if kind == "list<string>" else element.cast(pl.String)
        words_of = value.list.eval(word.fill_null(_NULL)).list.join(LIST_SEPARATOR)
        return pl.concat_str(pl.lit("["), words_of, pl.lit("]"))
    if kind == "string":
        return _counted(value)
    if kind == "binary":
        return value.bin.encode("hex").str.to_uppercase()
    return value.cast(pl.String)


def _counted(text: pl.Expr) -> pl.Expr:
    return pl.concat_str(text.str.len_chars().cast(pl.String), pl.lit(":"), text)


def _with_digests(frames: Frames) -> Frames:
    """Yields narrow rows: those that are moved have the digest of their text instead of it."""
    for frame in frames:
        digests = [sha256(text.encode()).digest() for text in row_texts(frame)]
        yield frame.with_columns(
            pl.Series("digest", digests, pl.Binary()),
            pl.col("kind_number").alias("kind"),
            pl.col("verdict_number").alias("verdict"),
        ).select(list(_LINKED))


class _Links(NamedTuple):
    """The walk over rows in order, each with the row before it."""

    begins: pl.DataFrame
    parts: Mapping[int, int]

    def findings(self, frames: Frames) -> Frames:
        """Yields the findings, and the digests that members reported."""
        checks = [*order_of_rows(), _link_check()]
        for rows in with_states(frames, _STATES, self.begins):
            before = rows.select(
                pl.when(pl.col("number") == 1).then(pl.lit(b"")).otherwise(pl.col("previous_chain"))
            ).to_series()
            links = [
                None if chain is None else sha256(chain + digest).digest()[:CHAIN_BYTES]
                for chain, digest in zip(before, rows["digest"], strict=True)
            ]
            linked = rows.with_columns(pl.Series("link", links, pl.Binary()))
            yield wrong_rows(linked, checks)
            yield told_digests(rows, self.parts)


def _link_check() -> Check:
    number, link, chain = pl.col("number"), pl.col("link"), pl.col("chain")
    # Behind missing rows the chain before is not known; that they are missing is a finding of its
    # own.
    follows = (number == 1) | (number == pl.col("previous_number") + 1)
    return Check(
        Code.RECORD_EDITED,
        follows & ~is_true(chain == link),
        _hexadecimal_of(link),
        _hexadecimal_of(chain),
        words(
            "row ",
            number,
            ", of kind ",
            kind_name(pl.col("kind")),
            ", does not fit the ",
            "chain: it, or the chain beside it, was changed after it was written",
        ),
        pl.col("previous_place"),
    )


class _Reports(NamedTuple):
    """The walk over places, each with the rows that histories have there, and what was reported."""

    members: pl.DataFrame
    gaps: Gaps
    opened_us: int

    def findings(self, frames: Frames) -> Frames:
        """Yields findings and notes."""
        for frame in whole(frames, _PLACE):
            told = frame.filter(pl.col("told").is_not_null())
            if not len(told):
                continue
            compared = self._compared(frame.filter(pl.col("told").is_null()), told)
            inside = compared.with_columns(in_gap(compared["h"], compared["place"], self.gaps))
            yield wrong_rows(inside.filter("is_new"), [_report_check()])
            is_not_kept = pl.col("told_new") & (pl.col("place") < pl.col("whole_place"))
            asks = pl.col("place") >= pl.col("first_place")
            yield notes(_UNKNOWN, inside.filter(is_not_kept & asks).head(1).select("h", "place"))
            latest, place = pl.col("latest"), pl.col("place")
            behind = (place > latest) & (pl.col("last_place") == latest)
            is_cut = behind & (pl.col("told_us") < self.opened_us).fill_null(value=True)
            for code, those in ((_COMPARED, place <= pl.col("last_place")), (_BEHIND, behind)):
                counts = place.n_unique().alias("low"), pl.col("number").max().alias("high")
                yield notes(code, compared.filter(those).group_by("h").agg(counts))
            last = compared.filter(is_cut).sort("place", "told").group_by("h").last()
            yield notes(
                _CUT,
                last.with_columns(
                    expected=_hexadecimal_of(pl.col("told")),
                    witness=pl.col("recorder").list.join(", "),
                ),
            )

    def _compared(self, rows: pl.DataFrame, told: pl.DataFrame) -> pl.DataFrame:
        """Returns each chain that was reported, for each history that it can be about, with its row
        at the place: `number` is 0 if the history has none. `known`: whether any history has it;
        `latest`: where the last of these histories ends.
        """
        reported = told.group_by(_REPORTED).agg(
            pl.col("told_place", "told_us").min(),
            pl.col("recorder").unique().sort(),
            pl.col("is_new").any().alias("told_new"),
        )
        candidates = reported.join(self.members, ["group", "observer"])
        # What its member had reported before it joined with this history is about an earlier one.
        is_later = pl.col("told_place") > pl.col("joined_place")
        is_later &= (pl.col("told_us") >= pl.col("first_us")).fill_null(value=True)
        candidates = candidates.filter(is_later & (pl.col("place") >= pl.col("first_place")))
        compared = candidates.join(
            rows.select("h", "place", "number", "chain", "is_new"), ["h", "place"], "left"
        )
        has_it = (pl.col("chain") == pl.col("told")).fill_null(value=False)
        return compared.with_columns(
            pl.col("number").fill_null(0),
            (
                pl.col("told_new")
                | pl.col("is_new").fill_null(value=False)
                | (pl.col("place") > pl.col("audited_to"))
            ).alias("is_new"),
            has_it.any().over(_REPORTED).alias("known"),
            pl.col("last_place").max().over(_REPORTED).alias("latest"),
        )


def _wrong_reports(log: Log, gaps: Gaps) -> DataFrame:
    """Returns the findings about chains that members reported, but for those in gaps; and notes.

    Of rows and reports that were both audited before, nothing is told again.
    """
    group = log.by_history(_group).alias("group")
    is_new = (F.col("number") > log.by_history(lambda history: history.since)).alias("is_new")
    report = F.col("kind") == RecordKind.REPORT
    told = log.rows.where(report & F.col("reported_chain").isNotNull()).select(
        group,
        F.col("origin").alias("observer"),
        F.col("reported_place").alias("place"),
        F.col("reported_chain").alias("told"),
        F.col("place").alias("told_place"),
        F.col("decided_us").alias("told_us"),
        log.by_history(lambda history: history.observer).alias("recorder"),
        is_new,
    )
    own = log.rows.select(group, "observer", "place", "h", "number", "chain", is_new)
    rows = in_order(concatenated(own, told), _PLACE, ["number", "told_place"])
    return walk(rows, _Reports(_members(log), gaps, log.opened_us).findings, FOUND)


def _members(log: Log) -> pl.DataFrame:
    """Returns the histories that members have written, with columns to match reports to them."""
    rows = [
        (
            mine.h,
            _group(mine),
            mine.observer,
            mine.first_place,
            mine.last_place,
            mine.first_us,
            -1 if mine.joined_place is None else mine.joined_place,
            *((mine.before.whole_place, mine.before.last_place) if mine.before else (0, -1)),
        )
        for mine in log.histories
        if mine.source is Source.MEMBER and not _is_before_joining(mine)
    ]
    columns = {
        "h": pl.Int32(),
        "group": pl.String(),
        "observer": pl.String(),
        **dict.fromkeys(("first_place", "last_place", "first_us", "joined_place"), pl.Int64()),
        **dict.fromkeys(("whole_place", "audited_to"), pl.Int64()),
    }
    return pl.DataFrame(rows, schema=columns, orient="row")


def _group(history: History) -> str:
    """Returns the group whose members may report about a history; if unknown, one of its own."""
    return history.group_source or f"of history {history.h}"


def _is_before_joining(history: History) -> bool:
    """Returns whether a history's member reads the log from the beginning, and has not reached its
    own joining.
    """
    reads_anew = history.start is not None and not history.start_version
    return reads_anew and history.joined_place is None


def _report_check() -> Check:
    inside = pl.col("place") <= pl.col("last_place")
    is_missing = (pl.col("number") == 0) & pl.col("in_gap")
    return Check(
        Code.REPORT_WRONG,
        inside & ~pl.col("known") & ~is_missing,
        _hexadecimal_of(pl.col("told")),
        _hexadecimal_of(pl.col("chain")).fill_null("no row"),
        words("so it was recorded in the histories of ", pl.col("recorder").list.join(", ")),
    )


def _hexadecimal_of(value: pl.Expr) -> pl.Expr:
    """Returns bytes as people see them."""
    return value.bin.encode("hex").str.to_uppercase()
