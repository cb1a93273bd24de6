"""The rules that divide transactions among workers: by database, by table, by row.

`schemes.assigned_partitions` and `schemes.by_rows` are what they repeat. A job is a share of an
entry; of databases and tables each worker has a queue of them, a linked list through `share_next`.
"""

from .state import (
    ALONE,
    APPENDED,
    DIVIDED,
    FULL,
    HEAD,
    OCCUPIED,
    Columns,
    Settings,
    State,
    room,
    start,
    start_head,
)

_NOBODY = -1
_QUEUE_FULL = -2


def take_partitions(settings: Settings, columns: Columns, state: State) -> None:
    """Assigns entries to workers as long as they can be, then starts each idle worker's first."""
    counters = state.counters
    left = room(settings, state)
    counters[FULL] = 0
    while counters[HEAD] < counters[APPENDED]:
        head = counters[HEAD]
        if not left:
            counters[FULL] = 1
        if not left or counters[ALONE]:
            break
        is_alone = columns.share_alone[head] != 0
        if (is_alone and counters[OCCUPIED]) or not _place(settings, columns, state, head):
            break
        counters[HEAD] = head + 1
        counters[ALONE] = is_alone
        left -= 1
    for worker in range(settings.workers):
        if state.queue_firsts[worker] and not state.working[worker]:
            state.working[worker] = 1
            share = state.queue_firsts[worker] - 1
            entry = columns.share_entries[share]
            start(state, entry, 1, share, columns.share_us[share])


def visible_in_partitions(columns: Columns, state: State, share: int) -> None:
    """Removes a committed job from its worker's queue, and releases its partitions."""
    counters = state.counters
    worker = state.share_workers[share]
    state.queue_firsts[worker] = state.share_next[share]
    state.queue_lengths[worker] -= 1
    state.working[worker] = 0
    counters[OCCUPIED] -= 1
    counters[ALONE] = 0
    for place in range(columns.partition_offsets[share], columns.partition_offsets[share + 1]):
        state.usages[columns.partitions[place]] -= 1


def _place(settings: Settings, columns: Columns, state: State, entry: int) -> bool:
    """Assigns each share of an entry to a worker; does nothing and returns False if one waits."""
    first, stop = columns.shares[entry], columns.shares[entry + 1]
    placed = first
    while placed < stop:
        worker = _worker_for(settings, columns, state, placed)
        if worker < 0:
            state.counters[FULL] = worker == _QUEUE_FULL
            break
        state.share_workers[placed] = worker
        state.queue_extra[worker] += 1
        placed += 1
    # They counted for the lengths of queues while the others were placed.
    for share in range(first, placed):
        state.queue_extra[state.share_workers[share]] = 0
    if placed < stop:
        return False
    state.parts[entry] = stop - first
    if stop - first > 1:
        state.counters[DIVIDED] = 1
    for share in range(first, stop):
        _assign(columns, state, share)
    return True


def _worker_for(settings: Settings, columns: Columns, state: State, share: int) -> int:
    """Returns the worker that has the share's partitions, or the one with the shortest queue;
    `_NOBODY` if two have some of them, `_QUEUE_FULL` if the queue is.
    """
    owner = _NOBODY
    for place in range(columns.partition_offsets[share], columns.partition_offsets[share + 1]):
        partition = columns.partitions[place]
        if state.usages[partition]:
            if owner >= 0 and state.owners[partition] != owner:
                return _NOBODY
            owner = state.owners[partition]
    if owner >= 0:
        return owner if state.queue_lengths[owner] < settings.queue_max else _QUEUE_FULL
    shortest = 0
    for worker in range(settings.workers):
        if state.queue_lengths[worker] < settings.queue_max:
            length = state.queue_lengths[worker] + state.queue_extra[worker]
            if owner < 0 or length < shortest:
                owner, shortest = worker, length
    return owner if owner >= 0 else _QUEUE_FULL


def _assign(columns: Columns, state: State, share: int) -> None:
    """Puts a share at the end of its worker's queue."""
    worker = state.share_workers[share]
    state.share_next[share] = 0
    if state.queue_firsts[worker]:
        state.share_next[state.queue_lasts[worker]] = share + 1
    else:
        state.queue_firsts[worker] = share + 1
    state.queue_lasts[worker] = share
    state.queue_lengths[worker] += 1
    state.counters[OCCUPIED] += 1
    for place in range(columns.partition_offsets[share], columns.partition_offsets[share + 1]):
        partition = columns.partitions[place]
        if not state.usages[partition]:
            state.owners[partition] = worker
        state.usages[partition] += 1


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
