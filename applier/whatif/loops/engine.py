"""The loop of one run: ends, then commits, then starts, of each moment of time.

`applier.whatif.simulation`, `engine.coordinator` and `engine.commit_order` are what it repeats.
"""

from .job_list import take_jobs, visible_in_list
from .partitions import take_partitions, take_rows, visible_in_partitions
from .stamp_rules import take_clock, take_groups, take_parent, visible_in_groups
from .state import (
    APPENDED,
    BARRIER,
    BUCKET_US,
    CHANGED,
    CLOCK,
    COMMIT_GROUPS,
    COMMITTING,
    COMMITTING_US,
    DOMAIN,
    ENDS,
    EXECUTING,
    EXECUTING_US,
    FULL,
    FULL_US,
    GRAPH,
    GROUPS,
    HEAD,
    IDLE,
    IDLE_US,
    KEPT,
    LEFT_US,
    LIST,
    NONE,
    NOW,
    OCCUPIED,
    PARENT,
    PARTITIONS,
    ROWS,
    VISIBLE,
    WAITING_US,
    WIDTH_MAX,
    Columns,
    Settings,
    State,
    pop_end,
    push_end,
)


def run(settings: Settings, columns: Columns, state: State) -> None:
    """Runs until every entry is visible; `state.counters` has the result."""
    counters = state.counters
    entries = len(columns.durations_us)
    while True:
        if counters[APPENDED] - counters[VISIBLE] < settings.assigned_max + settings.progress:
            counters[APPENDED] = min(entries, counters[APPENDED] + settings.progress)
        for place in range(counters[CHANGED]):
            _commit(settings, columns, state, state.changed[place])
        counters[CHANGED] = 0
        if counters[IDLE]:
            _take(settings, columns, state)
        if not counters[ENDS]:
            break
        _advance(settings, state, state.end_times_us[0])
        while counters[ENDS] and state.end_times_us[0] == counters[NOW]:
            value = pop_end(state)
            if value >= 0:
                _executed(settings, columns, state, value)
            elif settings.ordering == NONE:
                _visible_job(settings, columns, state, -1 - value)
            else:
                _visible_group(settings, columns, state, -1 - value)
    assert counters[VISIBLE] == entries, "nothing runs, and something is left"


def _take(settings: Settings, columns: Columns, state: State) -> None:
    """Starts what the scheme lets start."""
    kind = settings.kind
    if kind == CLOCK:
        take_clock(settings, columns, state)
    elif kind == PARENT:
        take_parent(settings, columns, state)
    elif kind == GROUPS:
        take_groups(settings, columns, state)
    elif kind == PARTITIONS:
        take_partitions(settings, columns, state)
    elif kind == LIST or kind == BARRIER or kind == GRAPH:
        take_jobs(settings, columns, state)
    else:
        take_rows(settings, columns, state)


def _executed(settings: Settings, columns: Columns, state: State, job: int) -> None:
    """Notes that a job is ready to commit."""
    state.counters[EXECUTING] -= 1
    if settings.ordering == NONE:
        _changed(state, job)
        return
    entry = columns.share_entries[job] if settings.kind == PARTITIONS else job
    state.ready[entry] += 1
    _changed(state, columns.lanes[entry] if settings.ordering == DOMAIN else 0)


def _changed(state: State, lane: int) -> None:
    """Notes that a lane may commit, or where there is no order a job."""
    counters = state.counters
    state.changed[counters[CHANGED]] = lane
    counters[CHANGED] += 1


def _commit(settings: Settings, columns: Columns, state: State, lane: int) -> None:
    """Commits the ready prefix of a lane, or where there is no order the job `lane`."""
    counters = state.counters
    end_us = counters[NOW] + settings.commit_us
    if settings.ordering == NONE:
        counters[COMMITTING] += 1
        push_end(state, end_us, -1 - lane)
        return
    first = entry = state.lane_heads[lane]
    jobs = transactions = 0
    while not state.lane_commits[lane] and entry < len(columns.durations_us):
        # A divided entry becomes visible with all its parts.
        if not state.ready[entry] or state.ready[entry] < state.parts[entry]:
            break
        transactions += state.sizes[entry]
        if jobs and transactions > settings.group_max:
            break
        jobs += state.parts[entry]
        entry = _next(settings, columns, state, entry)
    if jobs:
        state.lane_commits[lane] = 1
        state.lane_firsts[lane] = first
        state.lane_heads[lane] = entry
        counters[COMMITTING] += jobs
        push_end(state, end_us, -1 - lane)


def _next(settings: Settings, columns: Columns, state: State, entry: int) -> int:
    """Returns the entry that follows a job in its lane."""
    if settings.ordering == DOMAIN:
        return columns.next_in_lane[entry]
    return entry + state.sizes[entry]


def _visible_group(settings: Settings, columns: Columns, state: State, lane: int) -> None:
    """Makes the group of a lane visible, and frees its workers."""
    counters = state.counters
    counters[COMMIT_GROUPS] += 1
    state.lane_commits[lane] = 0
    # What became ready while the lane was committing is its next group.
    _changed(state, lane)
    entry = state.lane_firsts[lane]
    while entry != state.lane_heads[lane]:
        for each in range(entry, entry + state.sizes[entry]):
            state.visible_us[each] = counters[NOW]
        parts = state.parts[entry]
        state.parts[entry] = 0
        counters[VISIBLE] += state.sizes[entry]
        counters[COMMITTING] -= parts
        counters[IDLE] += parts
        if settings.kind == PARTITIONS:
            for share in range(columns.shares[entry], columns.shares[entry + 1]):
                visible_in_partitions(columns, state, share)
        else:
            _release(settings, columns, state, entry, parts)
        entry = _next(settings, columns, state, entry)


def _visible_job(settings: Settings, columns: Columns, state: State, job: int) -> None:
    """Makes one job visible, where there is no order."""
    counters = state.counters
    counters[COMMIT_GROUPS] += 1
    counters[COMMITTING] -= 1
    counters[IDLE] += 1
    entry = columns.share_entries[job] if settings.kind == PARTITIONS else job
    for each in range(entry, entry + state.sizes[entry]):
        state.visible_us[each] = counters[NOW]
    state.parts[entry] -= 1
    if not state.parts[entry]:
        counters[VISIBLE] += state.sizes[entry]
    if settings.kind == PARTITIONS:
        visible_in_partitions(columns, state, job)
    else:
        _release(settings, columns, state, entry, 1)


def _release(
    settings: Settings,
    columns: Columns,
    state: State,
    entry: int,
    parts: int,
) -> None:
    """Tells the scheme that a job is visible."""
    kind = settings.kind
    if kind == GROUPS:
        visible_in_groups(columns, state, entry)
    elif kind == LIST or kind == BARRIER or kind == GRAPH:
        visible_in_list(settings, columns, state, entry)
    elif kind == PARENT or kind == ROWS:
        state.counters[OCCUPIED] -= parts


def _advance(settings: Settings, state: State, to_us: int) -> None:
    """Adds the time until the next end to the counters."""
    counters = state.counters
    now, executing, idle = counters[NOW], counters[EXECUTING], counters[IDLE]
    passed_us = to_us - now
    if not passed_us:
        return
    counters[NOW] = to_us
    counters[IDLE_US] += idle * passed_us
    if counters[HEAD] == counters[APPENDED] and not counters[KEPT]:
        counters[LEFT_US] += idle * passed_us
    elif counters[FULL]:
        counters[FULL_US] += idle * passed_us
    at_work = executing + counters[COMMITTING]
    counters[EXECUTING_US] += executing * passed_us
    counters[COMMITTING_US] += counters[COMMITTING] * passed_us
    counters[WAITING_US] += (settings.workers - idle - at_work) * passed_us
    counters[WIDTH_MAX] = max(counters[WIDTH_MAX], executing)
    _add_width(state, now, to_us, executing)


def _add_width(state: State, start_us: int, stop_us: int, width: int) -> None:
    """Adds an interval of time to the buckets, which become longer when time is beyond them."""
    counters, areas_us = state.counters, state.areas_us
    buckets = len(areas_us)
    while stop_us > counters[BUCKET_US] * buckets:
        for bucket in range(buckets // 2):
            areas_us[bucket] = areas_us[2 * bucket] + areas_us[2 * bucket + 1]
        for bucket in range(buckets // 2, buckets):
            areas_us[bucket] = 0
        counters[BUCKET_US] *= 2
    bucket_us = counters[BUCKET_US]
    while start_us < stop_us:
        bucket = start_us // bucket_us
        border_us = min(stop_us, (bucket + 1) * bucket_us)
        areas_us[bucket] += width * (border_us - start_us)
        start_us = border_us
