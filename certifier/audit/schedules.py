"""Schedules: how long so many workers take under each scheme of the seeds, over columns of numbers.

The rule it keeps, the model of time: transactions are there from the beginning and are handed out
in the source's order. A worker is occupied from the start of a transaction until it is visible;
where the source's order is preserved, that is when all before it are visible too. Handing out and
committing take no time. These functions know nothing of Spark; they run in its Python workers.
"""

from heapq import heappop, heappush, heapreplace

import numpy as np

from certifier.audit.critical_path import Flags, Ints

ASSIGNED_MAX = 16_384
"""Transactions that are with the workers at a time, where each of them has a queue."""


def newest_writers(rows: Ints, items: Ints, count: int) -> Ints:
    """How many of the first rows have to be visible before each may start: up to the last one
    before it that wrote one of its items.

    Args:
        rows: int64[n], ascending: whose item each is. items: int64[n]. count: how many rows.
    """
    order = np.lexsort((rows, items))
    same = items[order][1:] == items[order][:-1]
    later, earlier = rows[order][1:][same], rows[order][:-1][same]
    apart = later != earlier
    waited = np.zeros(count, dtype=np.int64)
    np.maximum.at(waited, later[apart], earlier[apart] + 1)
    return waited


def group_begins(groups: Ints) -> Ints:
    """Where the group of neighbours begins that each row is in; 0 is a group of one."""
    places = np.arange(len(groups), dtype=np.int64)
    begins = np.ones(len(groups), dtype=np.bool_)
    begins[1:] = (groups[1:] != groups[:-1]) | (groups[1:] == 0)
    return np.maximum.accumulate(np.where(begins, places, 0))


def at_the_head(lengths: Ints, waited: Ints, workers: int) -> int:
    """The time if only the head of the queue may start: when the first `waited` are visible.

    Source: WL#7165, WL#8440 (logical clock); WL#6314 (commit parent). Cost: O(n).
    """
    visible, start, last = [0], 0, 0
    append = visible.append
    for row, (length, before) in enumerate(zip(lengths.tolist(), waited.tolist(), strict=True)):
        start = max(start, visible[before])
        if row >= workers:
            start = max(start, visible[row - workers + 1])
        last = max(last, start + length)
        append(last)
    return last


def whoever_may(lengths: Ints, waited: Ints, workers: int) -> int:
    """The time if the oldest starts of all whose first `waited` are visible.

    Source: WL#4648, C3 with commits in order. Cost: O(n log n).
    """
    rows, times, needed = len(lengths), lengths.tolist(), np.sort(waited).tolist()
    order = np.argsort(waited, kind="stable").tolist()
    done = bytearray(rows + 1)
    ready: list[int] = []
    running: list[tuple[int, int]] = []
    visible = known = now = 0
    free = workers
    while visible < rows:
        while known < rows and needed[known] <= visible:
            heappush(ready, order[known])
            known += 1
        while free and ready:
            row = heappop(ready)
            heappush(running, (now + times[row], row))
            free -= 1
        now = running[0][0]
        while running and running[0][0] == now:
            done[heappop(running)[1]] = 1
        while done[visible]:
            visible += 1
            free += 1
    return now


def until_conflict(lengths: Ints, waited: Ints, alone: Flags, workers: int) -> int:
    """The time if rows run at once up to a conflict, then one by one until two in a row have none.

    Source: WL#4648, C2. Cost: O(n).
    """
    visible, start, last, in_a_row = [0], 0, 0, 2
    columns = zip(lengths.tolist(), waited.tolist(), alone.tolist(), strict=True)
    for row, (length, before, by_itself) in enumerate(columns):
        if row >= workers:
            start = max(start, visible[row - workers + 1])
        if by_itself:
            in_a_row, start = 0, last
        else:
            serial = in_a_row < 2
            if (in_a_row and before == row) if serial else visible[before] > start:
                serial, in_a_row = True, 0
            in_a_row += serial
            if in_a_row < 2:
                start = last
        last = max(last, start + length)
        visible.append(last)
    return last


def in_lanes(lengths: Ints, lanes: Ints, groups: Ints, alone: Flags, workers: int) -> int:
    """The time if of each lane one group runs at once, lanes beside each other.

    Source: MDEV-4506, the domains and their group commits. Cost: O(n log workers).
    """
    free = [0] * min(workers, len(lengths))
    group_of: dict[int, int] = {}
    begun: dict[int, int] = {}
    visible: dict[int, int] = {}
    floor = last = 0
    columns = (lengths.tolist(), lanes.tolist(), groups.tolist(), alone.tolist())
    for length, lane, group, by_itself in zip(*columns, strict=True):
        if by_itself:
            floor = last = last + length
            continue
        before = visible.get(lane, 0)
        if not group or group != group_of.get(lane):
            begun[lane], group_of[lane] = before, group
        end = max(max(free[0], begun[lane], floor) + length, before)
        heapreplace(free, end)
        visible[lane] = end
        last = max(last, end)
    return last


class Partitions:
    """Which partitions each row updates, and how much of its work each takes."""

    def __init__(self, rows: Ints, names: Ints, unknown: Flags, *, divided: bool) -> None:
        """`rows`, `names`: int64[n], the row and the partition of each change. `unknown`: bool[k],
        rows that lock all partitions. `divided`: whether parts of a row run apart.
        """
        self.unknown = unknown
        self.divided = divided
        parts: list[list[tuple[int, int]]] = [[] for _ in unknown]
        pairs, sizes = np.unique(np.stack([rows, names], axis=1), axis=0, return_counts=True)
        for (row, name), size in zip(pairs.tolist(), sizes.tolist(), strict=True):
            parts[row].append((name, size))
        self.parts = parts

    def jobs(self, row: int, length: int) -> list[tuple[list[int], int]]:
        """The jobs that a row becomes: the partitions of each, and its length."""
        parts = self.parts[row]
        if not self.divided or len(parts) < 2:
            return [([name for name, _ in parts], length)]
        whole = sum(size for _, size in parts)
        return [([name], -(-length * size // whole)) for name, size in parts]


def with_owners(lengths: Ints, partitions: Partitions, workers: int | None) -> int:
    """The time if each partition in use has a worker, who does what updates it one by one.

    `workers` None: as many as there are partitions. Source: WL#5569; WL#4648, P2.
    Cost: O(jobs * workers).
    """
    free = [0] * (workers or 1)
    used: dict[int, tuple[int, int]] = {}
    ends: list[int] = []
    assigned = last = 0
    for row, length in enumerate(lengths.tolist()):
        if row >= ASSIGNED_MAX:
            assigned = max(assigned, ends[row - ASSIGNED_MAX])
        if partitions.unknown[row]:
            assigned = last = last + length
        else:
            for names, work in partitions.jobs(row, length):
                owners: dict[int, int] = {}
                for name in names:
                    end, worker = used.get(name, (0, 0))
                    if end > assigned:
                        owners[worker] = max(end, owners.get(worker, 0))
                if workers is None:
                    end = max([assigned, *owners.values()]) + work
                    used |= dict.fromkeys(names, (end, 0))
                else:
                    if len(owners) > 1:
                        assigned = max(assigned, sorted(owners.values())[-2])
                    worker = max(owners, key=owners.__getitem__, default=-1)
                    if worker < 0:
                        worker = free.index(min(free))
                    end = free[worker] = max(free[worker], assigned) + work
                    used |= dict.fromkeys(names, (end, worker))
                last = max(last, end)
        ends.append(last)
    return last
