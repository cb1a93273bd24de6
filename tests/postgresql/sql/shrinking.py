"""Cuts a case that fails down to the parts without which it does not (delta debugging)."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.postgresql.sql.case import Case

Part = TypeVar("Part")


def shrink(case: Case, fails: Callable[[Case], bool], seconds_max: float) -> Case:
    """Returns a case that still fails, with as few parts as are found in time: sessions first, then
    transactions, what is made, and single statements.

    Args:
        fails: Runs a case; whether it fails as the first one did.
    """
    deadline = time.monotonic() + seconds_max

    def is_late() -> bool:
        return time.monotonic() > deadline

    best = case
    for key in (lambda step: step.session, lambda step: step.transaction):
        groups = [*dict.fromkeys(key(step) for step in best.steps)]
        base = best

        def with_groups(kept: Sequence[int], base: Case = base, key=key) -> Case:
            return base.with_parts(steps=[step for step in base.steps if key(step) in kept])

        kept = reduced(groups, lambda kept: fails(with_groups(kept)), is_late)
        best = with_groups(kept)
    base = best
    definitions = reduced(
        base.definitions, lambda kept: fails(base.with_parts(definitions=kept)), is_late
    )
    best = base.with_parts(definitions=definitions)
    last = best
    steps = reduced(last.steps, lambda kept: fails(last.with_parts(steps=kept)), is_late)
    return last.with_parts(steps=steps)


def reduced(
    parts: Sequence[Part], fails: Callable[[Sequence[Part]], bool], is_late: Callable[[], bool]
) -> Sequence[Part]:
    """Returns parts of which none can be left out alone, if there is time.

    Cost: some n log n runs for n parts of which few are needed.

    >>> reduced(range(100), lambda kept: {7, 40} <= set(kept), lambda: False)
    [7, 40]
    """
    kept = list(parts)
    size = max(1, len(kept) // 2)
    while kept and not is_late():
        place = 0
        has_shrunk = False
        while place < len(kept) and not is_late():
            fewer = kept[:place] + kept[place + size :]
            if fails(fewer):
                kept, has_shrunk = fewer, True
            else:
                place += size
        if size == 1 and not has_shrunk:
            break
        size = max(1, size // 2)
    return kept
