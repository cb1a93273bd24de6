"""Proof: checks the chain of each history, and the chains that its member reported to the group.

A row's link is computed from its own columns and the chain of the row before it, each link by
itself. Somebody who edits a row and chains the rest anew is found by the chains that the members
exchanged while the group ran: the other histories have them.
"""

from collections.abc import Mapping, Sequence

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from groupcert.certifier.audit.answers.findings import Code, Finding
from groupcert.certifier.audit.answers.result import JsonObject, Result
from groupcert.certifier.audit.proof.digests import Differing, differing_digests
from groupcert.certifier.audit.rows.checks import Check, Found, FoundAll, merged, run_checks, words
from groupcert.certifier.audit.rows.consequences import without_consequences
from groupcert.certifier.audit.rows.gaps import is_in_gap
from groupcert.certifier.audit.rows.log import History, Log
from groupcert.certifier.audit.rows.order import STATE, order_of_rows
from groupcert.certifier.audit.rows.sequence import is_kind
from groupcert.certifier.audit.rows.states import segment_begins, with_states
from groupcert.certifier.history.schema import (
    CHAIN_BYTES,
    CHAINED,
    FIELD_SEPARATOR,
    LIST_SEPARATOR,
    RecordKind,
    Source,
)

_NULL = "null"


def run(log: Log) -> Result:
    """Checks links, gaps and moved rows of each history, and chains against exchanged ones."""
    checkpoints = _checkpoints(log).persist(StorageLevel.DISK_ONLY)
    links = _check_links(log)
    found = without_consequences(log, merged([links, _check_checkpoints(log, checkpoints)]))
    result = Result([each.finding for each in found.found], found.counts)
    differing, compared = differing_digests(log)
    result.add([_digest_finding(log, each) for each in differing])
    edited = [each for each in links.found if each.finding.code is Code.RECORD_EDITED]
    result.summary = _summary(log, checkpoints, compared, edited)
    checkpoints.unpersist()
    return result


def row_digest() -> Column:
    """Returns SHA-256 of a row's text (`certifier.history.schema.text_of`), 32 bytes."""
    fields = [
        F.concat(F.lit(f"{number}="), _word(column.name, column.kind))
        for number, column in enumerate(CHAINED)
    ]
    return F.unhex(F.sha2(F.concat_ws(FIELD_SEPARATOR, *fields), 256))


def _word(name: str, kind: str) -> Column:
    """Returns a value as it is chained; also a null element of a list, which no writer makes."""
    if kind.startswith("list"):
        elements = F.col(name).cast("array<string>")
        if kind == "list<string>":
            elements = F.transform(elements, _counted)
        joined = F.array_join(elements, LIST_SEPARATOR, _NULL)
        return F.concat(F.lit("["), joined, F.lit("]"))
    if kind == "string":
        return _counted(F.col(name))
    return F.hex(name) if kind == "binary" else F.col(name).cast("string")


def _counted(text: Column) -> Column:
    return F.concat(F.length(text).cast("string"), F.lit(":"), text)


def _check_links(log: Log) -> FoundAll:
    rows = log.rows.select(
        *("h", "number", "place", "kind", "version", "verdict", "chain"),
        row_digest().alias("digest"),
    )
    previous = {"previous": F.struct(*STATE, "chain")}
    rows = with_states(rows, ["h"], previous, segment_begins(rows, ["h"], previous)).withColumns(
        {f"previous_{name}": F.col(f"previous.{name}") for name in STATE}
    )
    before = F.when(F.col("number") == 1, F.lit(b"")).otherwise(F.col("previous.chain"))
    link = F.unhex(F.sha2(F.concat(before, F.col("digest")), 256)).substr(1, CHAIN_BYTES)
    follows = (F.col("number") == 1) | (F.col("number") == F.col("previous_number") + 1)
    return run_checks(
        log,
        rows,
        [
            *order_of_rows(),
            Check(
                Code.RECORD_EDITED,
                follows & ~F.coalesce(F.col("chain") == link, F.lit(False)),
                F.hex(link),
                F.hex("chain"),
                words(
                    *("row ", F.col("number"), ", of kind ", F.col("kind"), ", does not fit the "),
                    "chain: it, or the chain beside it, was changed after it was written",
                ),
                F.col("previous_place"),
            ),
        ],
    )


def _checkpoints(log: Log) -> DataFrame:
    """Returns the chains that members reported, for each history that they can be about, with its
    row at the place: `number` and `chain` are null if the history has none, and `known` tells
    whether any history has the chain.

    A member reports nothing before it has joined, and nothing about a history that began later: one
    whose store was lost reads on from the log's beginning, over the places of the history before.
    Until it has joined again nothing was reported about that.
    """
    candidates = _told(log).join(F.broadcast(_members(log)), ["group", "observer"])
    is_later = F.col("told_place") > F.col("joined_place")
    is_later &= F.coalesce(F.col("told_us") >= F.col("first_us"), F.lit(True))
    candidates = candidates.where(is_later & (F.col("place") >= F.col("first_place"))).persist(
        StorageLevel.DISK_ONLY
    )
    rows = log.rows.select("h", "place", "number", "chain").join(
        F.broadcast(candidates.select("h", "place").distinct()), ["h", "place"]
    )
    same = Window.partitionBy("group", "observer", "place", "told")
    return candidates.join(rows, ["h", "place"], "left").withColumn(
        "known", F.max(F.coalesce(F.col("chain") == F.col("told"), F.lit(False))).over(same)
    )


def _told(log: Log) -> DataFrame:
    """Returns the chains that members reported, each once."""
    told = is_kind(RecordKind.CHECKPOINT) & F.col("reported_chain").isNotNull()
    return (
        log.rows.where(told)
        .groupBy(
            log.by_history(_group).alias("group"),
            F.col("origin").alias("observer"),
            F.col("reported_place").alias("place"),
            F.col("reported_chain").alias("told"),
        )
        .agg(
            F.min("place").alias("told_place"),
            F.min("decided_us").alias("told_us"),
            F.array_sort(F.collect_set(log.by_history(lambda each: each.observer))).alias(
                "recorders"
            ),
        )
    )


def _members(log: Log) -> DataFrame:
    """Returns the histories that members have written, with columns to match reports to them."""
    rows = [
        (
            *(each.h, _group(each), each.observer, each.first_place, each.last_place),
            *(each.first_us, each.joined_place),
        )
        for each in log.histories
        if each.source is Source.MEMBER and not _is_before_joining(each)
    ]
    columns = "h int, group string, observer string, first_place long, last_place long"
    told = log.spark.createDataFrame(rows, f"{columns}, first_us long, joined_place long")
    return told.fillna(-1, ["joined_place"])


def _group(history: History) -> str:
    """Returns the group whose members may report about a history; if unknown, one of its own."""
    return history.group_source or f"of history {history.h}"


def _is_before_joining(history: History) -> bool:
    """Returns whether a history's member reads the log from the beginning, and has not reached its
    own joining.
    """
    reads_anew = history.start is not None and not history.start_version
    return reads_anew and history.joined_place is None


def _check_checkpoints(log: Log, checkpoints: DataFrame) -> FoundAll:
    inside = F.col("place") <= F.col("last_place")
    check = Check(
        Code.CHECKPOINT_WRONG,
        inside & ~F.col("known"),
        F.hex("told"),
        F.coalesce(F.hex("chain"), F.lit("no row")),
        words("so it was recorded in the histories of ", F.array_join("recorders", ", ")),
    )
    rows = checkpoints.withColumn("number", F.coalesce("number", F.lit(0)))
    found = run_checks(log, rows, [check])
    if not found.counts:
        return found
    is_told = (F.col("number") == 0) & is_in_gap(log)("h", "place")
    return run_checks(log, rows.where(~is_told), [check])


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


def _summary(
    log: Log, checkpoints: DataFrame, digests: Mapping[int, int], edited: Sequence[Found]
) -> JsonObject:
    """Returns the summary. `checkpoints_behind`: those about places after the end of a history,
    which ends early. `last_place`: the last one up to which all rows fit the chain; none if the
    first does not.
    """
    behind = F.col("place") > F.col("last_place")
    counted = checkpoints.groupBy("h").agg(
        F.count_distinct(F.when(~behind, F.col("place"))).alias("compared"),
        F.count_distinct(F.when(behind & ~F.col("known"), F.col("place"))).alias("behind"),
    )
    counts = {row["h"]: (row["compared"], row["behind"]) for row in counted.collect()}
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
                "checkpoints": counts.get(each.h, (0, 0))[0],
                "checkpoints_behind": counts.get(each.h, (0, 0))[1],
                "digests": digests.get(each.h, 0),
                "last_place": wrong[each.h][0].low if each.h in wrong else each.last_place,
            }
            for each in log.histories
        ]
    }
