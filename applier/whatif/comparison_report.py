"""The report: one document with the results of a comparison; tables and the page are views of it.

Times are whole microseconds and add up; ratios are rounded only here. The page is one HTML file for
people, with the document in it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from ...certifier.pages import page as pages
from ..schemes import Cause
from .dependencies import NO_ITEM
from .scheme_comparison import Bounds, Line, Sample, speedup
from .server_settings import SETTINGS
from .simulation import Run
from .workload import Stamps, Workload, interval_mean

JsonObject = dict[str, Any]
Reason = TypeVar("Reason", Cause, Cause | None)
HOT_MAX = 20
"""Most rows, and most tables, that are listed."""
PATH_ENDS = 5
"""Transactions of the critical path that are named at each of its ends."""
DIGITS = 4
_ROOM = files("groupcert.applier.whatif")


class Compared(NamedTuple):
    """A line of the comparison with its runs, by number of workers."""

    line: Line
    runs: Sequence[Run]


def document(
    source: Mapping[str, object],
    workload: Workload,
    sample: Sample,
    compared: Sequence[Compared],
    workers: Sequence[int],
) -> JsonObject:
    """Returns the whole report. `source`: the origin of the stream, as its reader describes it; if
    it has `tables_without_keys`, bounds are of tables where rows are not known.
    `sample`: what was scheduled of it, and what bounds are of.
    """
    limits = sample.whole
    return {
        "source": dict(source),
        "workload": _workload(workload, limits),
        "critical_path": {
            **_critical_path(workload, limits),
            "is_known": not source.get("tables_without_keys"),
        },
        "hot_items": _hot_items(workload, limits),
        "hot_tables": _hot_tables(workload, limits),
        "stamps": {
            stamps.value: {"interval_mean": _ratio(interval_mean(workload.stamps(stamps)))}
            for stamps in Stamps
        },
        "windows": _windows(workload, sample, compared),
        "workers": list(workers),
        "bounds": [_bound(sample, number) for number in workers],
        "causes": {_key(cause): cause.value for cause in Cause},
        "schemes": [_compared(one, sample) for one in compared],
    }


def page(report: JsonObject) -> str:
    """Returns the page of a report."""
    script, style = (_ROOM.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("js", "css"))
    return pages.page("What if: parallel schemes compared", script, report, style=style)


def _workload(workload: Workload, limits: Bounds) -> JsonObject:
    return {
        "entries": len(workload) + workload.passed,
        "transactions": workload.transactions + workload.passed,
        "read": len(workload),
        "without_write_set": workload.without_write_set,
        "durations": _durations(workload),
        "costs": {**asdict(workload.costs), "spread_percent": workload.spread_percent},
        "serial_us": limits.serial_us,
    }


def _windows(workload: Workload, sample: Sample, compared: Sequence[Compared]) -> JsonObject | None:
    """Returns the share of the stream that was scheduled, and how far its windows differ; None if
    it was all of it.
    """
    entries = len(workload) + workload.passed
    if sample.entries == entries:
        return None
    spreads = [(sample.spread(run), one.line, run) for one in compared for run in one.runs]
    spread, line, run = max(spreads, key=lambda each: each[0])
    return {
        "count": len(sample.windows),
        "entries": sample.entries,
        "share": _ratio(sample.entries / entries),
        "first": [window.positions[0] + 1 for window in sample.windows],
        "spread": _ratio(spread),
        "spread_of": f"{line.label}, {run.workers} workers",
    }


def _durations(workload: Workload) -> str:
    if not workload.timed:
        return "model"
    return "source" if workload.timed == workload.transactions else "mixed"


def _critical_path(workload: Workload, limits: Bounds) -> JsonObject:
    path = limits.path.transactions
    names = [workload.name(number) for number in path]
    return {
        "length_us": limits.path.length_us,
        "transactions": len(path),
        "first": names[:PATH_ENDS],
        "last": names[-PATH_ENDS:],
        "speedup_max": _ratio(speedup(limits.serial_us, limits.shortest_us)),
    }


def _path_links(workload: Workload, limits: Bounds) -> list[tuple[int, int, int]]:
    """Returns for each transaction of the critical path but the first: its number, the row that
    ties it to the one before it, and its time.
    """
    commit_us, path = workload.costs.commit_us, limits.path
    return [
        (number, item, workload.durations_us[number] + commit_us)
        for number, item in zip(path.transactions[1:], path.items, strict=True)
    ]


def _hot_items(workload: Workload, limits: Bounds) -> list[JsonObject]:
    """Returns the rows with most time on the critical path, then those written most often."""
    writers = Counter(workload.dependencies.items)
    del writers[NO_ITEM]
    on_path: Counter[int] = Counter()
    for _, item, length_us in _path_links(workload, limits):
        on_path[item] += length_us
    del on_path[NO_ITEM]
    hottest = [item for item, _ in on_path.most_common(HOT_MAX // 2)]
    hottest += [item for item, _ in writers.most_common(HOT_MAX) if item not in hottest]
    return [
        {
            "item": workload.texts[item],
            "writers": writers[item] + 1,
            "critical_path_us": on_path[item],
        }
        for item in hottest[:HOT_MAX]
    ]


def _hot_tables(workload: Workload, limits: Bounds) -> list[JsonObject]:
    """Returns the tables, by descending time of the transactions that write them."""
    transactions: Counter[str] = Counter()
    work_us: Counter[str] = Counter()
    on_path: Counter[str] = Counter()
    for number, duration_us in enumerate(workload.durations_us):
        for table in workload.tables(number):
            transactions[table] += 1
            work_us[table] += duration_us
    for number, item, length_us in _path_links(workload, limits):
        tables = workload.tables(number)
        if item != NO_ITEM:
            tables = {workload.texts[item].partition("/")[0]} & tables
        for table in tables:
            on_path[table] += length_us
    hottest = sorted(work_us, key=lambda table: (-work_us[table], table))[:HOT_MAX]
    return [
        {
            "table": table,
            "transactions": transactions[table],
            "work_us": work_us[table],
            "critical_path_us": on_path[table],
        }
        for table in hottest
    ]


def _bound(sample: Sample, workers: int) -> JsonObject:
    least_us = sample.least_us(workers)
    return {
        "workers": workers,
        "makespan_us": least_us,
        "speedup": _ratio(speedup(sample.serial_us, least_us)),
    }


def _compared(compared: Compared, sample: Sample) -> JsonObject:
    line, runs = compared
    scheme = line.make()
    return {
        "label": line.label,
        "scheme": line.scheme,
        "conflicts": line.conflicts,
        "policy": line.policy,
        "stamps": line.stamps.value if line.scheme == "logical-clock" else None,
        "consistency": scheme.consistency.value,
        "ordering": scheme.ordering.value,
        "settings": [setting._asdict() for setting in SETTINGS.get(line, ())],
        "runs": [_run(run, sample) for run in runs],
    }


def _run(run: Run, sample: Sample) -> JsonObject:
    makespan_us = run.makespan_us
    worker_us = run.workers * makespan_us
    return {
        "workers": run.workers,
        "makespan_us": makespan_us,
        "speedup": _ratio(speedup(sample.serial_us, makespan_us)),
        "spread": _ratio(sample.spread(run)),
        "bound_share": _ratio(speedup(sample.least_us(run.workers), makespan_us)),
        "worker_use": _ratio(_share(run.executing_us + run.committing_us, worker_us)),
        "worker_time_us": {
            "executing": run.executing_us,
            "processor": run.processor_us,
            "waiting_to_commit": run.waiting_us,
            "committing": run.committing_us,
            "idle": {_key(cause): idle_us for cause, idle_us in _sorted(run.idle_us)},
        },
        "width_mean": _ratio(_share(run.executing_us, makespan_us)),
        "width_max": run.width_max,
        "width": {
            "bucket_us": run.width_bucket_us,
            "workers": _widths(run),
        },
        "jobs": run.jobs,
        "commit_groups": run.commit_groups,
        "commit_group_mean": _ratio(_share(sample.entries, run.commit_groups)),
        "held": {
            _key(cause): {"transactions": run.holds.get(cause, 0), "us": held_us}
            for cause, held_us in _sorted(run.held_us)
        },
        "fallbacks": {_key(cause): count for cause, count in _sorted(run.fallbacks)},
        "overtakers": run.overtakers,
    }


def _widths(run: Run) -> list[float]:
    """Returns the mean width in each bucket; the last one may be shorter than the others."""
    bucket_us = run.width_bucket_us
    last_us = run.makespan_us - bucket_us * (len(run.widths_us) - 1)
    lengths = [bucket_us] * (len(run.widths_us) - 1) + [last_us]
    areas = zip(run.widths_us, lengths, strict=False)
    return [_ratio(_share(area_us, length_us)) for area_us, length_us in areas]


def _sorted(counts: Mapping[Reason, int]) -> list[tuple[Reason, int]]:
    """Returns the pairs, the largest count first."""
    return sorted(counts.items(), key=lambda pair: -pair[1])


def _key(cause: Cause | None) -> str:
    return cause.name.lower() if cause else "nothing_left"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0


def _ratio(value: float) -> float:
    return round(value, DIGITS)
