"""The rules of one list of jobs: without control, with a barrier, by the graph.

`schemes.jobs` is what they repeat; an entry that its control does not take starts when nothing is
occupied, and nothing starts beside it.
"""

from .graph import next_of_graph, visible_in_graph
from .state import (
    ALONE,
    APPENDED,
    BARRIER,
    GRAPH,
    HEAD,
    IDLE,
    IN_A_ROW,
    JUDGED,
    LIST,
    OCCUPIED,
    ROW,
    Columns,
    Settings,
    State,
    room,
    start_head,
)


def take_jobs(settings: Settings, columns: Columns, state: State) -> None:
    """Starts the jobs that the control gives, one on each idle worker."""
    counters = state.counters
    while counters[IDLE] and not counters[ALONE]:
        left = room(settings, state)
        if settings.kind == GRAPH:
            started = next_of_graph(settings, columns, state, left)
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
        visible_in_graph(columns, state, entry)
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
