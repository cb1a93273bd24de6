"""The schedule of a stream under one line, as the loops compute it.

What a run has and a schedule has not are causes: those only the coordinator knows. The columns that
a rule reads are made once for all numbers of workers; one that the workload has is taken as it is,
not copied.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ...queue.row_parts import Part
from ...schemes import Cause, Ordering
from ...schemes.assigned_partitions import WORKER_QUEUE_MAX
from ...schemes.by_database import DATABASES_MAX
from ...schemes.jobs import Conflicts, JobsOptions
from ..scheme_comparison import Line
from ..simulation import OPTIONS, PROGRESS_ENTRIES, Run
from ..width import BUCKETS_MAX
from ..workload import Stamps, Workload
from . import state as places
from .compiler import PLAIN, Loops
from .state import Columns, Settings, State

TIME_US_MAX = 1 << 44
"""Work, one after the other, up to which all sums fit the numbers of compiled loops; some 200 days:
above it Python's own numbers are taken.
"""
_JOBS = JobsOptions()
_SERIAL = Line("jobs", conflicts="ordered")
"""The line with the least to do for a transaction."""
_KINDS = {
    "logical-clock": places.CLOCK,
    "commit-parent": places.PARENT,
    "group-commit": places.GROUPS,
    "database": places.PARTITIONS,
    "table": places.PARTITIONS,
    "jobs ignore": places.LIST,
    "jobs ordered": places.LIST,
    "jobs barrier": places.BARRIER,
    "jobs graph": places.GRAPH,
    "jobs merge": places.GRAPH,
    "rows": places.ROWS,
}
_ORDERINGS = {
    Ordering.SOURCE: places.SOURCE,
    Ordering.DOMAIN: places.DOMAIN,
    Ordering.NONE: places.NONE,
}
_Numbers = Sequence[int]
_TYPES = "QIQQQQIIQQQIQIQBQI"
"""Type codes of `Columns`: one compiled loop takes all of them, the empty ones too."""
_SHARES = (
    "shares",
    "share_entries",
    "share_us",
    "share_alone",
    "partition_offsets",
    "partitions",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The result of a stream under one line, in microseconds; `Run` says what its fields are.

    `idle_us` is that of all workers, `left_us` the part of it at which nothing was left to start,
    `full_us` that at which a queue was full: a window is too short for a long queue.
    """

    makespan_us: int
    executing_us: int
    waiting_us: int
    committing_us: int
    idle_us: int
    left_us: int
    full_us: int
    jobs: int
    commit_groups: int
    width_max: int
    width_bucket_us: int
    widths_us: tuple[int, ...]
    overtakers: int | None

    @classmethod
    def of(cls, run: Run) -> "Schedule":
        """Returns the figures of a run of the coordinator that a schedule has, too."""
        return cls(
            makespan_us=run.makespan_us,
            executing_us=run.executing_us,
            waiting_us=run.waiting_us,
            committing_us=run.committing_us,
            idle_us=sum(run.idle_us.values()),
            left_us=run.idle_us.get(None, 0),
            full_us=run.idle_us.get(Cause.QUEUE, 0),
            jobs=run.jobs,
            commit_groups=run.commit_groups,
            width_max=run.width_max,
            width_bucket_us=run.width_bucket_us,
            widths_us=run.widths_us,
            overtakers=run.overtakers,
        )


def settings_of(line: Line, workers: int, commit_us: int) -> Settings:
    """Returns a line as settings of the loops: the limits are those of its scheme."""
    name = line.scheme
    if name == "jobs":
        name = f"jobs {line.conflicts or Conflicts.GRAPH.value}"
    return Settings(
        kind=_KINDS[name],
        ordering=_ORDERINGS[line.make().ordering],
        workers=workers,
        commit_us=commit_us,
        assigned_max=OPTIONS.assigned_transactions_max,
        group_max=OPTIONS.group_transactions_max,
        progress=PROGRESS_ENTRIES,
        first_available=int(line.policy == "first-available"),
        queue_max=WORKER_QUEUE_MAX,
        conflict_free_min=_JOBS.conflict_free_min,
        kept_max=workers * _JOBS.jobs_per_worker_max,
        merge_max=_JOBS.merge_transactions_max if line.conflicts == "merge" else 1,
    )


class Scheduler:
    """Schedules one workload under lines and numbers of workers."""

    def __init__(self, workload: Workload, loops: Loops = PLAIN) -> None:
        """Takes a stream, and the loops as `compiler.compiled` returns them."""
        costs = workload.costs
        work_us = sum(workload.durations_us) + costs.commit_us * len(workload)
        self._loops = loops if work_us < TIME_US_MAX else PLAIN
        self._workload = workload
        self._columns = _ColumnsOf(workload)
        self._one_worker: Schedule | None = None
        edges = workload.dependencies
        self._edges = (self._loops.view(edges.offsets), self._loops.view(edges.followed))

    def schedule(self, line: Line, workers: int) -> Schedule:
        """Returns the schedule of a line.

        One worker executes one transaction after the other, whatever the scheme: sums that all
        lines share but those that divide transactions, or merge them. Cost: 0.05 to 0.4 us an
        entry, compiled, and 20 times as much if not.
        """
        if workers == 1 and line.scheme != "table" and line.conflicts != "merge":
            if self._one_worker is None:
                self._one_worker = self._scheduled(_SERIAL, 1)
            return self._one_worker
        return self._scheduled(line, workers)

    def _scheduled(self, line: Line, workers: int) -> Schedule:
        return self.run(line, settings_of(line, workers, self._workload.costs.commit_us))

    def run(self, line: Line, settings: Settings) -> Schedule:
        """Returns the schedule of a line with other settings than its own."""
        view = self._loops.view
        read = self._columns.columns(settings.kind, line.stamps, line.scheme)
        columns = Columns(*map(view, read))  # type: ignore[arg-type]  # they are arrays
        state = self._state(settings, line, columns)
        self._loops.run(settings, columns, state)
        counters = state.counters
        overtakers = None
        if not counters[places.DIVIDED]:
            overtakers = self._loops.count_overtakers(
                *self._edges, state.started_us, state.visible_us, state.job_numbers
            )
        makespan_us, bucket_us = int(counters[places.NOW]), int(counters[places.BUCKET_US])
        return Schedule(
            makespan_us=makespan_us,
            executing_us=int(counters[places.EXECUTING_US]),
            waiting_us=int(counters[places.WAITING_US]),
            committing_us=int(counters[places.COMMITTING_US]),
            idle_us=int(counters[places.IDLE_US]),
            left_us=int(counters[places.LEFT_US]),
            full_us=int(counters[places.FULL_US]),
            jobs=int(counters[places.JOBS]),
            commit_groups=int(counters[places.COMMIT_GROUPS]),
            width_max=int(counters[places.WIDTH_MAX]),
            width_bucket_us=bucket_us,
            widths_us=tuple(map(int, state.areas_us[: -(-makespan_us // bucket_us)])),
            overtakers=overtakers,
        )

    def _state(self, settings: Settings, line: Line, columns: Columns) -> State:
        """Returns the state of a run that begins."""
        kind, written = settings.kind, len(columns.written)
        firsts = self._columns.lane_firsts if kind == places.GROUPS else (0,)
        partitions = self._columns.partitions[line.scheme] if kind == places.PARTITIONS else 0
        by_graph = kind == places.GRAPH
        lengths = {
            "counters": places.COUNTERS,
            "areas_us": BUCKETS_MAX,
            "ends": settings.workers + len(firsts),
            "startable": max(settings.kept_max, len(firsts)),
            "entries": len(self._workload),
            "lanes": len(firsts),
            "items": len(self._workload.texts) if written else 0,
            "nodes": len(self._workload) if by_graph else 0,
            "edges": written if by_graph else 0,
            "partitions": partitions,
            "shares": len(columns.share_us),
            "workers": settings.workers,
        }
        arrays = {
            name: array(code, bytes(lengths[unit] * array(code).itemsize))
            for unit, code, names in places.ARRAYS
            for name in names
        }
        counters = arrays["counters"]
        counters[places.IDLE] = settings.workers
        counters[places.BUCKET_US] = 1
        counters[places.IN_A_ROW] = settings.conflict_free_min
        arrays["lane_heads"][:] = array("q", firsts)
        views = {name: self._loops.view(made) for name, made in arrays.items()}
        return State(**views)  # type: ignore[arg-type]  # they can be written


@dataclass(slots=True)
class _Shares:
    """Shares of entries, as they are added."""

    firsts: "array[int]" = field(default_factory=lambda: array("Q", [0]))
    entries: "array[int]" = field(default_factory=lambda: array("I"))
    times_us: "array[int]" = field(default_factory=lambda: array("Q"))
    alone: "array[int]" = field(default_factory=lambda: array("B"))
    offsets: "array[int]" = field(default_factory=lambda: array("Q", [0]))
    partitions: "array[int]" = field(default_factory=lambda: array("I"))
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, time_us: int, partitions: Iterable[str]) -> None:
        """Adds a share of the entry that is being added."""
        numbers = self.numbers
        self.entries.append(len(self.alone))
        self.times_us.append(time_us)
        self.partitions.extend([numbers.setdefault(name, len(numbers)) for name in partitions])
        self.offsets.append(len(self.partitions))

    def end(self, *, alone: bool) -> None:
        """Ends an entry."""
        self.alone.append(alone)
        self.firsts.append(len(self.entries))


class _ColumnsOf:
    """Makes columns of a workload, and keeps those that it made last: they take some 30 bytes an
    entry, and runs of one rule, which share them, follow each other.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._kept: dict[str, tuple[_Numbers, ...]] = {}
        self.lane_firsts: _Numbers = ()
        """The first entry of each lane, after columns of the group commit were made."""
        self.partitions: dict[str, int] = {}
        """The number of partitions, by scheme, after columns of it were made."""

    def columns(self, kind: int, stamps: Stamps, scheme: str) -> Columns:
        """Returns the columns that a rule of a kind reads, the others empty; `scheme` names the one
        that assigns partitions.
        """
        workload = self._workload
        read: dict[str, _Numbers] = {
            "durations_us": workload.durations_us,
            "sources": workload.gtid_sources,
        }
        if kind == places.CLOCK:
            names = ("last_committed", "sequence_numbers")
            read |= zip(names, self._once(stamps.value, partial(self._stamps, stamps)), strict=True)
        elif kind == places.PARENT:
            read["parents"] = workload.commit_parents
        elif kind == places.GROUPS:
            read["commit_ids"] = workload.commit_ids
            read |= zip(("lanes", "next_in_lane"), self._once("lanes", self._lanes), strict=True)
        elif kind == places.PARTITIONS:
            read |= zip(_SHARES, self._once(scheme, partial(self._shares, scheme)), strict=True)
        elif kind == places.ROWS:
            read |= {"item_offsets": workload.item_offsets, "items": workload.all_items}
        elif kind in (places.BARRIER, places.GRAPH):
            read["item_offsets"] = workload.item_offsets
            names = ("written_offsets", "written")
            read |= zip(names, self._once("written", self._written), strict=True)
        empty = {name: array(code) for name, code in zip(Columns._fields, _TYPES, strict=True)}
        return Columns(**{**empty, **read})

    def _once(self, name: str, make: Callable[[], tuple[_Numbers, ...]]) -> tuple[_Numbers, ...]:
        if name not in self._kept:
            self._kept = {name: make()}
        return self._kept[name]

    def _stamps(self, stamps: Stamps) -> tuple[_Numbers, ...]:
        last_committed, sequence_numbers = array("Q"), array("Q")
        for last, number in self._workload.stamps(stamps):
            last_committed.append(last)
            sequence_numbers.append(number)
        return last_committed, sequence_numbers

    def _lanes(self) -> tuple[_Numbers, ...]:
        """Returns each entry's lane, and the next entry in it."""
        domains = self._workload.domains
        numbers: dict[int, int] = {}
        lanes = array("I", [numbers.setdefault(domain, len(numbers)) for domain in domains])
        following = array("I", bytes(4 * len(lanes)))
        newest = [len(lanes)] * len(numbers)
        # From the end, where the next entry of each lane is known.
        for entry in range(len(lanes) - 1, -1, -1):
            following[entry] = newest[lanes[entry]]
            newest[lanes[entry]] = entry
        self.lane_firsts = newest
        return lanes, following

    def _written(self) -> tuple[_Numbers, ...]:
        """Returns the items that are written more than once: others make nobody wait."""
        workload = self._workload
        numbers = {item: number for number, item in enumerate(workload.texts)}
        offsets, written = array("Q", [0]), array("I")
        for entry in range(len(workload)):
            written.extend([numbers[item] for item in workload.items(entry) if item in numbers])
            offsets.append(len(written))
        return offsets, written

    def _shares(self, scheme: str) -> tuple[_Numbers, ...]:
        """Returns the shares of each entry: all of it, or its changes of one table."""
        workload, shares = self._workload, _Shares()
        by_database = scheme == "database"
        for entry, duration_us in enumerate(workload.durations_us):
            used = workload.place(entry)[not by_database]
            alone = used is None or not workload.gtid_sources[entry]
            if used is None or alone or (by_database and len(used) > DATABASES_MAX):
                shares.add(duration_us, ())
                shares.end(alone=True)
                continue
            if by_database or len(used) < 2:
                shares.add(duration_us, used)
            else:
                for table in used:
                    share_us = workload.execution_us(entry, Part(table=table), len(used))
                    shares.add(share_us, (table,))
            shares.end(alone=False)
        self.partitions[scheme] = len(shares.numbers)
        return (
            shares.firsts,
            shares.entries,
            shares.times_us,
            shares.alone,
            shares.offsets,
            shares.partitions,
        )
