"""Proof: the chain of each history, and what its member told the group about it.

The rule it keeps: a row's link is computed from its own columns and the chain of the row before it,
each link by itself. Who edits a row and chains the rest anew meets the chains that the members
exchanged while the group ran, which the other histories have.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from certifier.audit.checks import Check, FoundAll, merged, run_checks, words
from certifier.audit.consequences import without_consequences
from certifier.audit.digests import Differing, differing_digests
from certifier.audit.findings import Code, Finding
from certifier.audit.log import Log
from certifier.audit.order import STATE, order_of_rows
from certifier.audit.result import JsonObject, Result
from certifier.audit.sequence import is_kind
from certifier.audit.states import segment_begins, with_states
from certifier.history import (
    CHAIN_BYTES,
    CHAINED,
    FIELD_SEPARATOR,
    LIST_SEPARATOR,
    RecordKind,
)

_NULL = "null"


def run(log: Log) -> Result:
    """Links, gaps and moved rows of each history; chains against those that were exchanged."""
    found = without_consequences(log, merged([_check_links(log), _check_checkpoints(log)]))
    result = Result([each.finding for each in found.found], found.counts)
    differing, compared = differing_digests(log)
    result.add([_digest_finding(log, each) for each in differing])
    result.summary = _summary(log, compared)
    return result


def row_digest() -> Column:
    """SHA-256 of a row's text (`certifier.history.text_of`), 32 bytes."""
    fields = [
        F.concat(F.lit(f"{number}="), _word(column.name, column.kind))
        for number, column in enumerate(CHAINED)
    ]
    return F.unhex(F.sha2(F.concat_ws(FIELD_SEPARATOR, *fields), 256))


def _word(name: str, kind: str) -> Column:
    """A value as it is chained; an element that is null, which no writer makes, is one as well."""
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
    rows = with_states(rows, ["h"], previous, segment_begins(rows, ["h"], previous))
    before = F.when(F.col("number") == 1, F.lit(b"")).otherwise(F.col("previous.chain"))
    link = F.unhex(F.sha2(F.concat(before, F.col("digest")), 256)).substr(1, CHAIN_BYTES)
    follows = (F.col("number") == 1) | (F.col("number") == F.col("previous.number") + 1)
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
            ),
        ],
    )


def _checkpoints(log: Log) -> DataFrame:
    """What members told about their chains, each once, and the row that it is about."""
    told = (
        log.rows.where(is_kind(RecordKind.CHECKPOINT) & F.col("reported_chain").isNotNull())
        .groupBy(
            F.col("origin").alias("observer"),
            F.col("reported_place").alias("place"),
            F.col("reported_chain").alias("told"),
        )
        .agg(F.array_sort(F.collect_set(_observer(log))).alias("recorders"))
    )
    rows = log.rows.select("h", "observer", "number", "place", "chain")
    return rows.join(F.broadcast(told), ["observer", "place"])


def _observer(log: Log) -> Column:
    return log.by_history(lambda each: each.observer)


def _check_checkpoints(log: Log) -> FoundAll:
    wrong = F.col("chain") != F.col("told")
    check = Check(
        Code.CHECKPOINT_WRONG,
        wrong & ~F.coalesce("known", F.lit(False)),
        F.hex("told"),
        F.hex("chain"),
        words("so it was recorded in the histories of ", F.array_join("recorders", ", ")),
    )
    compared = _checkpoints(log)
    fits = compared.groupBy("observer", "place", "told").agg(
        F.max(F.col("chain") == F.col("told")).alias("known")
    )
    return run_checks(log, compared.join(fits, ["observer", "place", "told"], "left"), [check])


def _digest_finding(log: Log, differing: Differing) -> Finding:
    told = differing.told
    return Finding(
        code=Code.DIGEST_WRONG,
        observer=log.histories[told.h].observer,
        place=told.place,
        expected=f"{told.digest:016x}",
        found=f"{differing.computed:016x}",
        witness=f"{told.origin} told the group this digest of all decisions up to message "
        f"{told.sequence} of the log; those that are recorded here have another",
    )


def _summary(log: Log, digests: Mapping[int, int]) -> JsonObject:
    compared = _checkpoints(log).groupBy("h").agg(F.countDistinct("place").alias("checkpoints"))
    counts = {row["h"]: row["checkpoints"] for row in compared.collect()}
    return {
        "observers": [
            {
                "observer": each.observer,
                "history": each.history,
                "rows": each.rows,
                "chained": each.rows,
                "checkpoints": counts.get(each.h, 0),
                "digests": digests.get(each.h, 0),
                "last_place": each.last_place,
            }
            for each in log.histories
        ]
    }
