"""Long streams of transactions that update few tables of few databases: queues fill, what spans
several workers is frequent, what runs alone is rare.
"""

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from groupcert.applier.queue.relay_group import RelayEntry
from tests.applier.scheme_driver import entry

TABLES = ("a.t", "a.u", "b.t", "c.t", "d.t", "e.t")
LENGTH = 30


def busy_stream(seed: int) -> Sequence[RelayEntry]:
    """A stream of `LENGTH` entries; one seed, one stream."""
    chance = random.Random(seed)
    entries = []
    for position in range(1, LENGTH + 1):
        kind = chance.random()
        if kind < 0.02:
            entries.append(entry(position, alone=True))
        elif kind < 0.05:
            entries.append(entry(position))
        else:
            count = chance.choice((1, 1, 1, 2, 3))
            entries.append(entry(position, tables=tuple(sorted(chance.sample(TABLES, count)))))
    return entries


busy_streams = st.integers(0, 2**32).map(busy_stream)
