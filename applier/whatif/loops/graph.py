"""The dependency graph's rule as a loop, with and without merged jobs.

`schemes.conflict_graph` and `schemes.dependency_graph` are what it repeats. A job bears the number
of its first entry. Sets are marks: what is in the newest set has the newest mark.
"""

from .state import (
    APPENDED,
    HEAD,
    KEPT,
    MARK,
    OCCUPIED,
    STARTABLE,
    Columns,
    Settings,
    State,
    pop_startable,
    push_startable,
    start,
)


def next_of_graph(
    settings: Settings,
    columns: Columns,
    state: State,
    left: int,
) -> bool:
    """Starts the oldest job that may start, and returns whether there is one."""
    counters = state.counters
    while not counters[STARTABLE] and counters[KEPT] < settings.kept_max:
        first = counters[HEAD]
        size = _merge(settings, columns, state, left)
        if not size:
            return False
        left -= size
        _add(columns, state, first, size)
    if not counters[STARTABLE]:
        return False
    first = pop_startable(state)
    counters[KEPT] -= 1
    counters[OCCUPIED] += 1
    duration_us = 0
    for entry in range(first, first + state.sizes[first]):
        duration_us += columns.durations_us[entry]
    state.parts[first] = 1
    start(state, first, state.sizes[first], first, duration_us)
    return True


def visible_in_graph(columns: Columns, state: State, first: int) -> None:
    """Makes the jobs ready that waited for a job alone."""
    last = first + state.sizes[first]
    for place in range(columns.written_offsets[first], columns.written_offsets[last]):
        item = columns.written[place]
        # A younger job may have written the item since, and others wait for that one.
        if state.item_writers[item] == first + 1:
            state.item_writers[item] = 0
    edge = state.followers[first]
    while edge:
        job = state.follower_jobs[edge - 1]
        state.waits[job] -= 1
        if not state.waits[job]:
            push_startable(state, job)
        edge = state.follower_next[edge - 1]


def _add(columns: Columns, state: State, first: int, size: int) -> None:
    """Adds the job that follows all others: it waits for the last writer of each of its items."""
    counters = state.counters
    counters[MARK] += 1
    state.sizes[first] = size
    for place in range(columns.written_offsets[first], columns.written_offsets[first + size]):
        item = columns.written[place]
        writer = state.item_writers[item] - 1
        state.item_writers[item] = first + 1
        # Nobody has written it, or the job waits for its writer already.
        if writer in (-1, first) or state.job_marks[writer] == counters[MARK]:
            continue
        state.job_marks[writer] = counters[MARK]
        state.waits[first] += 1
        state.follower_jobs[place] = first
        state.follower_next[place] = state.followers[writer]
        state.followers[writer] = place + 1
    counters[KEPT] += 1
    if not state.waits[first]:
        push_startable(state, first)


def _merge(settings: Settings, columns: Columns, state: State, left: int) -> int:
    """Takes the entries of the next job from the queue, and returns how many: 0 if none may be.

    The job waits for those with `waited_mark` in `job_marks`; its items bear `items_mark`.
    """
    counters = state.counters
    first = counters[HEAD]
    share = -(-(counters[APPENDED] - first) // settings.workers)
    most = min(left, share, settings.merge_max)
    if not most or _is_alone(columns, first):
        return 0
    counters[HEAD] = first + 1
    if most == 1:
        return 1
    waited_mark = counters[MARK] + 1
    counters[MARK] = waited_mark
    waited = _join(columns, state, first, waited_mark)
    size = 1
    while size < most and not _is_alone(columns, first + size):
        entry = first + size
        own = same = 0
        is_disjoint = True
        counters[MARK] += 1
        for place in range(columns.written_offsets[entry], columns.written_offsets[entry + 1]):
            item = columns.written[place]
            is_disjoint = is_disjoint and state.item_marks[item] != waited_mark
            writer = state.item_writers[item] - 1
            if writer < 0 or state.job_seen[writer] == counters[MARK]:
                continue
            state.job_seen[writer] = counters[MARK]
            own += 1
            same += state.job_marks[writer] == waited_mark
        resolves = not is_disjoint and (waited > 0 or not own)
        # It joins if it waits for the very same jobs, or settles a conflict by standing behind it.
        if not (own == same == waited) and not resolves:
            break
        waited += _join(columns, state, entry, waited_mark)
        size += 1
    counters[HEAD] = first + size
    return size


def _join(columns: Columns, state: State, entry: int, mark: int) -> int:
    """Adds an entry to the job that is made, and returns for how many more jobs that waits."""
    more = 0
    for place in range(columns.written_offsets[entry], columns.written_offsets[entry + 1]):
        item = columns.written[place]
        state.item_marks[item] = mark
        writer = state.item_writers[item] - 1
        if writer >= 0 and state.job_marks[writer] != mark:
            state.job_marks[writer] = mark
            more += 1
    return more


def _is_alone(columns: Columns, entry: int) -> bool:
    """Returns whether an entry has no GTID, or no rows that are known."""
    offsets = columns.item_offsets
    return not columns.sources[entry] or offsets[entry] == offsets[entry + 1]
