"""The rules that follow the source's stamps: logical clock, commit parent, group commit.

`schemes.logical_clock`, `schemes.commit_parent` and `schemes.group_commit` are what they repeat.
"""

from .state import (
    ALONE,
    APPENDED,
    FULL,
    HEAD,
    IDLE,
    KEPT,
    OCCUPIED,
    OLDEST,
    SHARED_PARENT,
    STARTABLE,
    STARTED,
    Columns,
    Settings,
    State,
    pop_startable,
    push_startable,
    room,
    start,
    start_head,
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


def take_groups(settings: Settings, columns: Columns, state: State) -> None:
    """Moves entries into their lanes, and starts the oldest of those that may start."""
    counters = state.counters
    counters[FULL] = 0
    if counters[ALONE]:
        return
    left = room(settings, state)
    while left > 0 and counters[HEAD] < counters[APPENDED] and columns.sources[counters[HEAD]]:
        head = counters[HEAD]
        lane = columns.lanes[head]
        counters[HEAD] = head + 1
        counters[KEPT] += 1
        left -= 1
        state.lane_waiting[lane] += 1
        if state.lane_waiting[lane] == 1:
            state.lane_next[lane] = head
            _place(columns, state, lane)
    while counters[STARTABLE] and counters[IDLE]:
        entry = pop_startable(state)
        lane = columns.lanes[entry]
        counters[KEPT] -= 1
        counters[OCCUPIED] += 1
        state.parts[entry] = 1
        start(state, entry, 1, entry, columns.durations_us[entry])
        state.lane_executing[lane] += 1
        state.lane_commit_ids[lane] = columns.commit_ids[entry]
        state.lane_waiting[lane] -= 1
        if state.lane_waiting[lane]:
            state.lane_next[lane] = columns.next_in_lane[entry]
            _place(columns, state, lane)
    is_left = counters[HEAD] < counters[APPENDED]
    if is_left and columns.sources[counters[HEAD]]:
        counters[FULL] = 1
    elif is_left and left > 0 and not counters[KEPT] and not counters[OCCUPIED]:
        start_head(columns, state)
        counters[ALONE] = 1


def visible_in_groups(columns: Columns, state: State, entry: int) -> None:
    """Counts one executing transaction of a lane fewer; its next group may start then."""
    counters = state.counters
    counters[OCCUPIED] -= 1
    if not columns.sources[entry]:
        counters[ALONE] = 0
        return
    lane = columns.lanes[entry]
    state.lane_executing[lane] -= 1
    if state.lane_held[lane] and _may_start(columns, state, lane):
        state.lane_held[lane] = 0
        push_startable(state, state.lane_next[lane])


def _may_start(columns: Columns, state: State, lane: int) -> bool:
    commit_id = columns.commit_ids[state.lane_next[lane]]
    return not state.lane_executing[lane] or (
        commit_id != 0 and commit_id == state.lane_commit_ids[lane]
    )


def _place(columns: Columns, state: State, lane: int) -> None:
    if _may_start(columns, state, lane):
        push_startable(state, state.lane_next[lane])
    else:
        state.lane_held[lane] = 1
