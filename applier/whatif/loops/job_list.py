"""The rules of one list of jobs: without control, with a barrier, by the graph.

`schemes.jobs` is what they repeat, and its controls; an entry that its control does not take starts
when nothing is occupied, and nothing starts beside it. Under the graph a job bears the number of
its first entry, of several if jobs are merged. Sets are marks: what is in the newest set has the
newest mark.
"""

from .state import (
    ALONE,
    APPENDED,
    BARRIER,
    GRAPH,
    HEAD,
    IDLE,
    IN_A_ROW,
    JUDGED,
    KEPT,
    LIST,
    MARK,
    OCCUPIED,
    ROW,
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


def take_jobs(settings: Settings, columns: Columns, state: State) -> None:
    """Starts the jobs that the control gives, one on each idle worker."""
    counters = state.counters
    while counters[IDLE] and not counters[ALONE]:
        left = room(settings, state)
        if settings.kind == GRAPH:
            started = _next_of_graph(settings, columns, state, left)
        else:
            started = _next_of_list(settings, columns, state, left)
            if started:
                start_head(columns, state)
        if started:
            continue
        if counters[OCCUPIED] or counters[HEAD] == counters[APPENDED] or not left:
            break
        start_head(columns, state)
        counters[ALONE] = 1


def visible_in_list(settings: Settings, columns: Columns, state: State, entry: int) -> None:
    """Frees what waited for the job that begins with an entry."""
    counters = state.counters
    counters[OCCUPIED] -= 1
    if counters[ALONE]:
        counters[ALONE] = 0
    elif settings.kind == GRAPH:
        _visible_in_graph(columns, state, entry)
    elif settings.kind == BARRIER:
        for place in range(columns.written_offsets[entry], columns.written_offsets[entry + 1]):
            state.item_writers[columns.written[place]] = 0


def _next_of_list(settings: Settings, columns: Columns, state: State, left: int) -> bool:
    """Returns whether the head may start."""
    counters = state.counters
    head = counters[HEAD]
    if not left or head == counters[APPENDED]:
        return False
    if settings.kind == LIST:
        return columns.sources[head] != 0
    if not columns.sources[head] or columns.item_offsets[head] == columns.item_offsets[head + 1]:
        counters[IN_A_ROW] = 0
        counters[ROW] += 1
        return False
    if counters[JUDGED] <= head:
        # Each head once: judged again, it would conflict with itself.
        counters[JUDGED] = head + 1
        _judge(settings, columns, state, head)
    if counters[IN_A_ROW] < settings.conflict_free_min and counters[OCCUPIED]:
        return False
    for place in range(columns.written_offsets[head], columns.written_offsets[head + 1]):
        state.item_writers[columns.written[place]] = 1
    return True


def _judge(settings: Settings, columns: Columns, state: State, head: int) -> None:
    """Counts the head into the row of jobs without conflict, or begins another row with it."""
    counters = state.counters
    is_serial = counters[IN_A_ROW] < settings.conflict_free_min
    conflicts = False
    for place in range(columns.written_offsets[head], columns.written_offsets[head + 1]):
        item = columns.written[place]
        if is_serial:
            conflicts = conflicts or state.item_marks[item] == counters[ROW]
        else:
            conflicts = conflicts or state.item_writers[item] != 0
    if not conflicts and not is_serial:
        return
    if conflicts:
        counters[IN_A_ROW] = 0
        counters[ROW] += 1
    counters[IN_A_ROW] += 1
    for place in range(columns.written_offsets[head], columns.written_offsets[head + 1]):
        state.item_marks[columns.written[place]] = counters[ROW]


def _next_of_graph(
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


def _visible_in_graph(columns: Columns, state: State, first: int) -> None:
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
