"""What the loops read and change: columns of the stream, and the state of one run.

Everything is a number in an array, so that numba can compile the loops: a tuple of arrays goes
through them, and `counters` has what would be the attributes of an object. Numbers of entries, jobs
and items begin at 0; where an array has "none", 0 is none and the numbers in it are greater by one.

A heap is two arrays: keys, and a value with each. `heapq` needs lists, and compiled code that has
none need not count references: that is most of its time, as each call passes all arrays of a run.
"""

from collections.abc import MutableSequence, Sequence
from typing import NamedTuple

Column = MutableSequence[int]
CLOCK, PARENT, GROUPS, PARTITIONS, LIST, BARRIER, GRAPH, ROWS = range(8)
"""Kinds of rules: what `Settings.kind` is."""
SOURCE, DOMAIN, NONE = range(3)
"""Orders of commits, as `schemes.Ordering` has them."""
NOW, HEAD, APPENDED, VISIBLE, IDLE, EXECUTING, COMMITTING, JOBS, COMMIT_GROUPS, DIVIDED = range(10)
EXECUTING_US, WAITING_US, COMMITTING_US, IDLE_US, LEFT_US, WIDTH_MAX, BUCKET_US = range(10, 17)
STARTED, OLDEST, KEPT, OCCUPIED, ALONE, SHARED_PARENT, IN_A_ROW, ROW, JUDGED = range(17, 26)
MARK, ENDS, CHANGED, STARTABLE, FULL, FULL_US = range(26, 32)
COUNTERS = 32
"""Places in `State.counters`.

`NOW`: the time. `HEAD`: the first entry that the scheme did not take of those `APPENDED`; `VISIBLE`
of the ones it took are done. `IDLE`, `EXECUTING`, `COMMITTING`: workers. `LEFT_US`: the part of
`IDLE_US` at which nothing was left to start; `FULL_US`: that at which a queue was full, `FULL` is 1
then, under rules that keep long queues. `ENDS`, `CHANGED` and `STARTABLE` count what is in the
arrays of their names. Of single rules: `STARTED` and `OLDEST` of the clock; `KEPT` jobs wait in the
scheme, `OCCUPIED` ones are not visible, `ALONE` is 1 while one runs alone; `SHARED_PARENT` of the
commit parent; `IN_A_ROW`, `ROW` and `JUDGED` of the barrier; `MARK` is the newest of the graph's.
"""


class Settings(NamedTuple):
    """The run: its rule, its workers, its times, the limits of coordinator and scheme."""

    kind: int
    ordering: int
    workers: int
    commit_us: int
    assigned_max: int
    group_max: int
    progress: int
    first_available: int = 0
    queue_max: int = 0
    conflict_free_min: int = 0
    kept_max: int = 0
    merge_max: int = 1


class Columns(NamedTuple):
    """The stream; what the rule does not read is empty.

    `sources`: 0 for an entry that runs alone. `lanes`: the domain of each entry, numbered from 0;
    `next_in_lane`: the next entry of that lane. `written`: the items that several transactions
    write, numbered from 0, by `written_offsets`; `items`: all of them, by `item_offsets`. A share
    is what one worker gets of an entry: `shares` has the first one of each entry, `share_us` its
    execution, `partitions` what it uses, by `partition_offsets`.
    """

    durations_us: Sequence[int]
    sources: Sequence[int]
    last_committed: Sequence[int]
    sequence_numbers: Sequence[int]
    parents: Sequence[int]
    commit_ids: Sequence[int]
    lanes: Sequence[int]
    next_in_lane: Sequence[int]
    item_offsets: Sequence[int]
    items: Sequence[int]
    written_offsets: Sequence[int]
    written: Sequence[int]
    shares: Sequence[int]
    share_entries: Sequence[int]
    share_us: Sequence[int]
    share_alone: Sequence[int]
    partition_offsets: Sequence[int]
    partitions: Sequence[int]


class State(NamedTuple):
    """The state of one run; each array is of one length, which `loops.schedule` gives it.

    `end_times_us` and `end_values` are a heap of the coming ends, `startable` is one of the jobs
    that the scheme keeps and that may start, `changed` has the lanes (without an order: the jobs)
    that may commit now.

    By entry: `ready` counts its executed jobs, `parts` its jobs that are not visible, `sizes` the
    entries of the job that begins with it. By lane: `lane_heads` is the first entry that is not
    committed or committing, `lane_firsts` the first one that is committing, `lane_commits` whether
    one is. The rest belongs to single rules.
    """

    counters: Column
    areas_us: Column
    end_times_us: Column
    end_values: Column
    changed: Column
    startable: Column
    startable_values: Column
    started_us: Column
    visible_us: Column
    job_numbers: Column
    ready: Column
    parts: Column
    sizes: Column
    lane_heads: Column
    lane_firsts: Column
    lane_commits: Column
    lane_next: Column
    lane_waiting: Column
    lane_executing: Column
    lane_commit_ids: Column
    lane_held: Column
    item_writers: Column
    item_marks: Column
    job_marks: Column
    job_seen: Column
    waits: Column
    followers: Column
    follower_next: Column
    follower_jobs: Column
    owners: Column
    usages: Column
    share_workers: Column
    share_next: Column
    queue_firsts: Column
    queue_lasts: Column
    queue_lengths: Column
    queue_extra: Column
    working: Column


ARRAYS = (
    ("counters", "q", ("counters",)),
    ("areas_us", "q", ("areas_us",)),
    ("ends", "q", ("end_times_us", "end_values", "changed")),
    ("startable", "q", ("startable", "startable_values")),
    ("entries", "q", ("started_us", "visible_us")),
    ("entries", "i", ("job_numbers", "ready", "parts", "sizes")),
    ("lanes", "q", ("lane_heads", "lane_firsts", "lane_commits", "lane_next")),
    ("lanes", "q", ("lane_waiting", "lane_executing", "lane_commit_ids", "lane_held")),
    ("items", "i", ("item_writers", "item_marks")),
    ("nodes", "i", ("job_marks", "job_seen", "waits", "followers")),
    ("edges", "i", ("follower_next",)),
    ("edges", "q", ("follower_jobs",)),
    ("partitions", "q", ("owners", "usages")),
    ("shares", "i", ("share_workers", "share_next")),
    ("workers", "q", ("queue_firsts", "queue_lasts", "queue_lengths", "queue_extra", "working")),
)
"""Each array of `State`: what it has a number for, and its type code."""


def room(settings: Settings, state: State) -> int:
    """Returns the number of entries that the scheme may take: those that it took and that are not
    visible are limited.
    """
    counters = state.counters
    return max(0, settings.assigned_max - (counters[HEAD] - counters[VISIBLE]))


def start(state: State, first: int, size: int, job: int, duration_us: int) -> None:
    """Starts a job of `size` entries from `first` on, on an idle worker."""
    counters = state.counters
    now = counters[NOW]
    counters[JOBS] += 1
    counters[IDLE] -= 1
    counters[EXECUTING] += 1
    for entry in range(first, first + size):
        state.started_us[entry] = now
        state.job_numbers[entry] = counters[JOBS]
    state.sizes[first] = size
    push_end(state, now + duration_us, job)


def start_head(columns: Columns, state: State) -> int:
    """Takes the head of the queue, starts it as a job of its own, and returns it."""
    counters = state.counters
    head = counters[HEAD]
    counters[HEAD] = head + 1
    counters[OCCUPIED] += 1
    state.parts[head] = 1
    start(state, head, 1, head, columns.durations_us[head])
    return head


def push_end(state: State, time_us: int, value: int) -> None:
    """Adds an end: of a job, or with -1 - its lane of a group commit (without an order: of a job's
    commit).
    """
    counters = state.counters
    counters[ENDS] = push(state.end_times_us, state.end_values, counters[ENDS], time_us, value)


def pop_end(state: State) -> int:
    """Removes the next end, and returns it without its time."""
    counters = state.counters
    value = state.end_values[0]
    counters[ENDS] = pop(state.end_times_us, state.end_values, counters[ENDS])
    return value


def push_startable(state: State, job: int) -> None:
    """Adds a job that may start."""
    counters = state.counters
    counters[STARTABLE] = push(
        state.startable, state.startable_values, counters[STARTABLE], job, job
    )


def pop_startable(state: State) -> int:
    """Removes the oldest job that may start, and returns it."""
    counters = state.counters
    job = state.startable[0]
    counters[STARTABLE] = pop(state.startable, state.startable_values, counters[STARTABLE])
    return job


def push(keys: Column, values: Column, count: int, key: int, value: int) -> int:
    """Adds a pair to a heap of `count` pairs, and returns how many there are.

    >>> keys, values = [5, 0], [1, 0]
    >>> push(keys, values, 1, 3, 2), keys, values
    (2, [3, 5], [2, 1])
    """
    place = count
    while place > 0:
        parent = (place - 1) // 2
        if keys[parent] <= key:
            break
        keys[place] = keys[parent]
        values[place] = values[parent]
        place = parent
    keys[place] = key
    values[place] = value
    return count + 1


def pop(keys: Column, values: Column, count: int) -> int:
    """Removes the pair with the smallest key, and returns how many are left.

    >>> keys, values = [3, 5], [2, 1]
    >>> pop(keys, values, 2), keys[0], values[0]
    (1, 5, 1)
    """
    count -= 1
    key, value = keys[count], values[count]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and keys[child + 1] < keys[child]:
            child += 1
        if key <= keys[child]:
            break
        keys[place] = keys[child]
        values[place] = values[child]
        place = child
    keys[place] = key
    values[place] = value
    return count
