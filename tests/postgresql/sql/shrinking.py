"""Cuts a case that fails down to the parts without which it does not (delta debugging)."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.postgresql.sql.case import Case, Step

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

    case = _with_fewer_groups(case, lambda step: step.session, fails, is_late)
    case = _with_fewer_groups(case, lambda step: step.transaction, fails, is_late)
    made = reduced(case.definitions, lambda kept: fails(case.with_parts(definitions=kept)), is_late)
    fewer = case.with_parts(definitions=made)
    steps = reduced(fewer.steps, lambda kept: fails(fewer.with_parts(steps=kept)), is_late)
    return fewer.with_parts(steps=steps)


def _with_fewer_groups(
    case: Case,
    group_of: Callable[[Step], int],
    fails: Callable[[Case], bool],
    is_late: Callable[[], bool],
) -> Case:
    """Leaves out all steps of a session or a transaction at once."""

    def with_groups(kept: Sequence[int]) -> Case:
        return case.with_parts(steps=[step for step in case.steps if group_of(step) in kept])

    groups = [*dict.fromkeys(map(group_of, case.steps))]
    return with_groups(reduced(groups, lambda kept: fails(with_groups(kept)), is_late))


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
