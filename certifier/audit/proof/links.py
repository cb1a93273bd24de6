"""The links of a history's chain: each is computed from a row's own columns and the chain of the
row before it, each link by itself.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

import polars as pl
from pyspark.sql import DataFrame

from ...history.schema import (
    CHAIN_BYTES,
    CHAINED,
    FIELD_SEPARATOR,
    LIST_SEPARATOR,
)
from ..answers.findings import Code
from ..rows.certification_log import Log
from ..rows.checks import FOUND, Check, is_true, words, wrong_rows
from ..rows.coded_columns import kind_name, kind_number, verdict_number
from ..rows.order import STATE, STATE_KINDS, order_of_rows
from ..rows.states import KEYS, begins_of_long, segment, with_states
from ..spark.walks import Frames, in_order, walk
from .digests import TOLD, parts_of, told_digests

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


def wrong_links(log: Log) -> DataFrame:
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
    begins = begins_of_long(log, rows, _STATES, _STATE_KINDS)
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
        hexadecimal_of(link),
        hexadecimal_of(chain),
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


def hexadecimal_of(value: pl.Expr) -> pl.Expr:
    """Returns bytes as people see them."""
    return value.bin.encode("hex").str.to_uppercase()
