"""Steps of digests, by themselves."""

import numpy as np
import polars as pl

from groupcert.certifier.audit.proof.digests import MASK, MULTIPLIER, _step
from groupcert.certifier.audit.rows.coded_columns import CERTIFIED
from groupcert.certifier.audit.rows.states import SEGMENT_ROWS
from groupcert.certifier.history.schema import RecordKind


def test_rows_that_are_there_twice_make_a_segment_larger() -> None:
    count = SEGMENT_ROWS + 100
    numbers = np.arange(count)
    zeros = np.zeros(count, np.int64)
    names = ("winner_version", "winner_item", "gtid_number", "stable_version", "low", "high")
    columns = {
        **dict.fromkeys(("h", "segment", *names), zeros),
        **dict.fromkeys(("number", "version"), numbers),
        "place": numbers << 24,
        "kind": np.full(count, list(RecordKind).index(RecordKind.TRANSACTION) + 1),
        "verdict": np.full(count, CERTIFIED),
    }
    rows = pl.DataFrame(columns).with_columns(snapshot_set=pl.lit(None, pl.String))
    step = _step(rows, {0: np.array([count])}, {})
    digest = 0
    for number in range(count):
        digest = (digest * MULTIPLIER + (number << 3 | CERTIFIED)) & MASK
    assert step["summand"][0] & MASK == digest
    assert step["factor"][0] & MASK == pow(MULTIPLIER, count, 1 << 64)
