"""Checks of collections: how many items each one had to purge, and how that moves the window.

What there was to purge is told to a collection's row by the walk over items (`rows/items.py`). Of
stable sets that are GTID sets (traces) it is not counted: they may purge beyond a version.

Source: WL#8440, garbage collection.
"""

import polars as pl

from ...history.schema import RecordKind
from ..answers.findings import Code
from ..rows.checks import Check, words
from ..rows.columns import is_kind


def purge_checks() -> list[Check]:
    """Returns the checks of what collections purged, for rows with the state before them and the
    facts `purged` and `purged_sequence`.
    """
    collection = is_kind(RecordKind.COLLECTION) & pl.col("decided")
    collected, edge = pl.col("met_collected"), pl.col("last_committed_global")
    known = collection & pl.col("met_stable_set").is_null()
    known &= collected >= pl.col("start_version")
    found, expected = pl.col("purged_items"), pl.col("purged").fill_null(0)
    after = pl.max_horizontal("met_edge", "purged_sequence")
    span = (collected + 1, pl.col("collected_version"))
    return [
        Check(
            Code.COLLECTION_WRONG,
            known & (found != expected),
            words(expected, " items"),
            words(found, " items"),
            words("it collected the versions ", span[0], " to ", span[1]),
            *span,
        ),
        Check(
            Code.WINDOW_WRONG,
            known & pl.col("met_tight") & (edge != after),
            after,
            edge,
            words("the largest sequence number that it purged is ", pl.col("purged_sequence")),
            *span,
        ),
    ]


def window_checks() -> list[Check]:
    """Returns the checks of windows, stable sets and view changes against the state before them."""
    view, edge = is_kind(RecordKind.VIEW_CHANGE), pl.col("last_committed_global")
    collection, stable = is_kind(RecordKind.COLLECTION), is_kind(RecordKind.STABLE_SET)
    met_edge, met_stable = pl.col("met_edge"), pl.col("met_stable")
    purged, version = pl.col("purged_items"), pl.col("version")
    first, second = pl.col("last_committed"), pl.col("sequence_number")
    after_view = pl.when(pl.col("resets_clock")).then(1).otherwise(met_edge)
    closes = (purged > 0) & ~pl.col("met_closed")
    after_collection = pl.when(closes).then(pl.col("met_sequence")).otherwise(met_edge)
    judged = pl.col("met_closed").is_not_null() & ~pl.col("met_tight")
    reached = pl.col("stable_version")
    return [
        Check(
            Code.VIEW_CHANGE_WRONG,
            pl.col("decided") & view & ((first != 0) | (second != 0) | (edge != after_view)),
            words("0, 0; edge ", after_view),
            words(first, ", ", second, "; edge ", edge),
            pl.lit("a view change is applied alone, and only its joiner's clock begins again"),
        ),
        Check(
            Code.STABLE_SET_WRONG,
            stable & ((reached < met_stable) | (reached > version)),
            words("from version ", met_stable, " to ", version),
            words("version ", reached),
            pl.lit("what all members have executed only grows, and is certified"),
        ),
        Check(
            Code.PURGED_TOO_EARLY,
            collection & (pl.col("collected_version") > met_stable),
            words("up to version ", met_stable, " at most, which all had executed"),
            words("up to version ", pl.col("collected_version")),
            words(purged, " items were purged"),
        ),
        Check(
            Code.WINDOW_WRONG,
            collection & judged & (edge != after_collection),
            after_collection,
            edge,
            words(
                "it purged ",
                purged,
                " items; the last number assigned is ",
                pl.col("met_sequence"),
                ", the edge before it ",
                met_edge,
            ),
        ),
    ]
