"""The logical clock's rule as a loop; `schemes.logical_clock` is what it repeats."""

from .state import (
    APPENDED,
    HEAD,
    IDLE,
    KEPT,
    OLDEST,
    STARTED,
    Columns,
    Settings,
    State,
    room,
    start,
)


def take_clock(settings: Settings, columns: Columns, state: State) -> None:
    """Schedules what C3 allows, and starts as much of it as there are idle workers.

    Entries from `OLDEST` to `STARTED` are executing or committed, from there to `HEAD` scheduled.
    """
    counters, numbers = state.counters, columns.sequence_numbers
    oldest, started, head = counters[OLDEST], counters[STARTED], counters[HEAD]
    # A visible job has no parts left.
    while oldest < started and not state.parts[oldest]:
        oldest += 1
    counters[OLDEST] = oldest
    left = room(settings, state)
    stop = head
    # It runs alone, and nothing is scheduled or executing: its turn has come.
    if oldest == head < counters[APPENDED] and left > 0 and not numbers[head]:
        stop = head + 1
    else:
        limit = left if settings.first_available else min(left, counters[IDLE])
        stop = _startable(columns, oldest, head, min(counters[APPENDED], head + limit))
    counters[HEAD] = stop
    while started < stop and counters[IDLE]:
        state.parts[started] = 1
        start(state, started, 1, started, columns.durations_us[started])
        started += 1
    counters[STARTED] = started
    counters[KEPT] = stop - started


def _startable(columns: Columns, oldest: int, head: int, stop: int) -> int:
    """Returns the first entry from `head` on that may not start together with those before it."""
    numbers = columns.sequence_numbers
    for entry in range(head, stop):
        if not numbers[entry] or (
            oldest < entry and columns.last_committed[entry] >= numbers[oldest]
        ):
            return entry
    return stop
