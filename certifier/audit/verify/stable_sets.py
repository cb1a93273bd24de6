"""Stable sets, checked against the members' reports of what they have executed.

A member counts with its last report. Nothing is known before each member of the view has made one
in this history, nor before there is a view.
"""

from collections import Counter
from itertools import chain
from typing import cast

import pyarrow as pa
from pyspark.sql import functions as F

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.rows.checks import Check, FoundAll, run_checks, words
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.history.schema import RecordKind, Source

BATCH_ROWS = 65_536
_KINDS = (RecordKind.CHECKPOINT, RecordKind.VIEW_CHANGE, RecordKind.STABLE_SET)
_BEYOND = pa.schema(
    [
        *(("h", pa.int32()), ("number", pa.int64()), ("place", pa.int64())),
        *(("stable_version", pa.int64()), ("reported", pa.int64()), ("member", pa.string())),
        ("since", pa.int64()),
    ]
)
_SCHEMA = (
    "h int, number long, place long, stable_version long, reported long, member string, since long"
)


def check_stable_sets(log: Log) -> FoundAll:
    """Finds stable sets beyond a report of a member of the view.

    Cost: a history's reports, of which each member makes one a second, are in one process at once,
    as columns; `BATCH_ROWS` of them as objects.
    """
    told = [each.h for each in log.histories if each.source in (Source.MEMBER, Source.TOTAL_ORDER)]
    if not told:
        return FoundAll([], Counter())
    reports = log.rows.where(F.col("h").isin(told) & F.col("kind").isin(*_KINDS)).select(
        *("h", "number", "place", "kind", "origin", "stable_version", "members")
    )
    beyond = reports.groupBy("h").applyInArrow(_beyond, _SCHEMA)
    return run_checks(
        log,
        beyond,
        [
            Check(
                Code.STABLE_SET_WRONG,
                F.lit(True),
                words("up to version ", F.col("reported"), " at most"),
                words("version ", F.col("stable_version")),
                words("member ", F.col("member"), " had reported no more, in row ", F.col("since")),
                F.col("since"),
            )
        ],
    )


def _beyond(table: pa.Table) -> pa.Table:
    """Returns the stable sets of a history that are beyond a report. `since`: the row from which on
    that has to be known.
    """
    members: list[str] = []
    viewed = 0
    reports: dict[str, tuple[int, int]] = {}
    found = []
    batches = table.sort_by("number").to_batches(max_chunksize=BATCH_ROWS)
    for row in chain.from_iterable(batch.to_pylist() for batch in batches):
        number, version = row["number"], row["stable_version"]
        if row["kind"] == RecordKind.VIEW_CHANGE:
            members, viewed = row["members"] or [], number
        elif version is None:
            continue
        elif row["kind"] == RecordKind.CHECKPOINT:
            before, _ = reports.get(row["origin"], (0, 0))
            reports[row["origin"]] = (max(before, version), number)
        elif members and all(each in reports for each in members):
            (reported, since), member = min((reports[each], each) for each in members)
            if version > reported:
                place = (row["h"], number, row["place"])
                found.append((*place, version, reported, member, min(since, viewed)))
    columns = zip(*found, strict=True) if found else [()] * len(_BEYOND)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, _BEYOND.types, strict=True)]
    return cast(pa.Table, pa.table(arrays, schema=_BEYOND))
