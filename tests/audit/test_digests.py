"""Steps of digests, by themselves."""

import numpy as np
import pyarrow as pa

from groupcert.certifier.audit.proof.digests import MASK, MULTIPLIER, _step
from groupcert.certifier.audit.rows.sequence import CERTIFIED
from groupcert.certifier.audit.rows.states import SEGMENT_ROWS


def test_rows_that_are_there_twice_make_a_segment_larger() -> None:
    count = SEGMENT_ROWS + 100
    numbers = np.arange(count)
    zeros = np.zeros(count, np.int64)
    columns = {
        **dict.fromkeys(("h", "segment", "term", "low", "high"), zeros),
        **dict.fromkeys(("number", "version"), numbers),
        "place": numbers << 24,
        "what": np.full(count, CERTIFIED),
        "elsewhere": [None] * count,
    }
    step = _step(pa.table(columns), {0: np.array([count])}, {})
    digest = 0
    for number in range(count):
        digest = (digest * MULTIPLIER + (number << 3 | CERTIFIED)) & MASK
    assert step["summand"][0].as_py() & MASK == digest
    assert step["factor"][0].as_py() & MASK == pow(MULTIPLIER, count, 1 << 64)
