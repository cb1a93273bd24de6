"""The rules that keep no queue of their own: the commit parent, and rows.

`schemes.commit_parent` and `schemes.rows` are what they repeat.
"""

from .state import (
    APPENDED,
    DIVIDED,
    HEAD,
    IDLE,
    OCCUPIED,
    SHARED_PARENT,
    Columns,
    Settings,
    State,
    room,
    start,
    start_head,
)


def take_parent(settings: Settings, columns: Columns, state: State) -> None:
    """Starts one transaction on each idle worker, while the commit parent is the same."""
    counters = state.counters
    left = room(settings, state)
    while counters[HEAD] < counters[APPENDED] and counters[IDLE] and left > 0:
        head = counters[HEAD]
        parent = columns.parents[head] if columns.sources[head] else 0
        if counters[OCCUPIED] and (not parent or parent != counters[SHARED_PARENT]):
            break
        counters[SHARED_PARENT] = parent
        start_head(columns, state)
        left -= 1


def take_rows(settings: Settings, columns: Columns, state: State) -> None:
    """Divides one transaction over all workers, when the one before it is visible."""
    counters = state.counters
    head = counters[HEAD]
    if counters[OCCUPIED] or head == counters[APPENDED]:
        return
    first, stop = columns.item_offsets[head], columns.item_offsets[head + 1]
    slots = 1
    if columns.sources[head]:
        slots = min(settings.workers, stop - first if stop > first else settings.workers)
    if slots == 1:
        start_head(columns, state)
        return
    counters[HEAD] = head + 1
    counters[OCCUPIED] = slots
    counters[DIVIDED] = 1
    state.parts[head] = slots
    wrap = (2**32 % slots) ** 2 % slots
    for slot in range(slots):
        rows, items = 1, slots
        if stop > first:
            rows, items = 0, stop - first
            for place in range(first, stop):
                item = columns.items[place]
                # Compiled, the upper half of the hashes is below 0: by 2^64 too small.
                rows += (item % slots + (item < 0) * wrap) % slots == slot
        share_us = -(-columns.durations_us[head] * rows // items)
        start(state, head, 1, head, share_us)
