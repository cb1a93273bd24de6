"""The group commit's rule as a loop; `schemes.group_commit` is what it repeats."""

from .state import (
    ALONE,
    APPENDED,
    FULL,
    HEAD,
    IDLE,
    KEPT,
    OCCUPIED,
    STARTABLE,
    Columns,
    Settings,
    State,
    pop_startable,
    push_startable,
    room,
    start,
    start_head,
)


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
