"""`groupcert whatif`: schedules a stream under every scheme and compares them.

The rule it keeps: nothing is scheduled here; `applier.whatif` does that. A stream is read once,
whatever is computed from it. Runs are shared between processes, which get what is scheduled, all of
a short stream and windows of a long one, when they start.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...applier.mysql_logs.binary_log_reader import read_binary_log, without_transactions
from ...applier.whatif.binary_log_work import BinaryLogWork
from ...applier.whatif.comparison_report import Compared, JsonObject, document, page
from ...applier.whatif.costs import Costs
from ...applier.whatif.history_work import HistoryWork
from ...applier.whatif.scheme_comparison import Line, run_line, sample_of
from ...applier.whatif.simulation import Run
from ...applier.whatif.trace_work import TraceWork
from ...applier.whatif.workload import Work, Workload, load
from ...certifier.core import CertifierOptions
from ...certifier.history.schema import Verdict
from ...certifier.history.trace import ReplaySummary
from ..errors.usage import InvalidOption
from ..host.progress_bar import progress
from ..host.worker_processes import WorkerProcesses
from ..security.credentials import Credentials
from .replay import opened, read_lines

HOT_SHOWN = 10
SCHEME_COLUMNS = 15
UNKNOWN = "not known"
PROGRESS_LINES = 1_000
Task = tuple[Line, int]

SHARED_ENTRIES_MIN = 200_000
"""Entries over all runs above which more processes are worth it."""


def runs_of(windows: Sequence[Workload], tasks: Sequence[Task], processes: int) -> dict[Task, Run]:
    """Returns the run of each line and number of workers, computed by so many processes."""
    if sum(map(len, windows)) * len(tasks) < SHARED_ENTRIES_MIN:
        processes = 1
    with progress("scheduling", len(tasks), "{:.0f} runs".format) as state:
        return dict(state.counted(_done(windows, tasks, min(processes, len(tasks)))))


def _done(
    windows: Sequence[Workload], tasks: Sequence[Task], processes: int
) -> Iterator[tuple[Task, Run]]:
    """Yields each task with its run, as they are done."""
    if processes == 1:
        yield from ((task, run_line(windows, *task)) for task in tasks)
        return
    with WorkerProcesses(processes, partial(_Process.begin, windows)) as pool:
        futures = {pool.submit(_Process.run, *task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()


class _Process:
    """State that one of several processes keeps between its runs."""

    windows: Sequence[Workload]

    @classmethod
    def begin(cls, windows: Sequence[Workload]) -> None:
        """Takes what is scheduled, once."""
        cls.windows = windows

    @classmethod
    def run(cls, line: Line, workers: int) -> Run:
        """Computes a run."""
        return run_line(cls.windows, line, workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOptions:
    """The runs to compare. `commit_group_transactions`: the size of group commits for a stream that
    does not give it; 1 for none. `processes`: at the same time, for long streams. `whole`: all of a
    stream is scheduled, however long it is. `notes`: about the costs. `as_json`: the report is
    printed as JSON; `html`: the file in which it is a page, too.
    """

    lines: Sequence[Line]
    workers: Sequence[int]
    costs: Costs
    commit_group_transactions: int
    processes: int
    whole: bool = False
    notes: Sequence[str] = ()
    as_json: bool = False
    html: Path | None = None


def whatif_trace(
    trace: str,
    certifier: CertifierOptions,
    options: WhatIfOptions,
) -> None:
    """Compares the schemes on a trace (a path, or `-`), and prints the result.

    Raises:
        InvalidTrace: A line cannot be read, or nothing is certified.
        OSError: There is no such file, or it cannot be read or written.
    """
    workload, summary = _read_trace(trace, certifier, options.costs)
    source = {
        "kind": "trace",
        "files": [trace],
        "conflicts": summary.conflict,
        "too_old": summary.too_old,
        "refused": summary.refused,
        "view_changes": summary.view_changes,
        "garbage_collections": summary.garbage_collections,
    }
    _tell(source, [], workload, options)


def _read_trace(
    trace: str, certifier: CertifierOptions, costs: Costs
) -> tuple[Workload, ReplaySummary]:
    """Returns the workload of a trace, and its decisions; what certified it is not kept."""
    reader = TraceWork(certifier)
    with ExitStack() as stack:
        source = stack.enter_context(opened(trace))
        lines: Iterator[str] = stack.enter_context(closing(read_lines(source)))
        state = stack.enter_context(progress("reading", number="{:,.0f} lines".format))
        workload = load(reader.read(state.counted(lines, PROGRESS_LINES)), costs)
    return workload, reader.summary


def whatif_binary_log(
    paths: Sequence[Path], options: WhatIfOptions, keys: str | None = None
) -> None:
    """Compares the schemes on the files of a binary log, and prints the result.

    Args:
        keys: the URL of a server that has the same tables, and says their keys.

    Raises:
        InvalidBinaryLog: A file cannot be read, or there is no transaction.
        OSError: There is no such file, or it cannot be read or written.
        SourceRefused, SourceLost, InvalidSetting: the server does not say them.
    """
    reader, known = BinaryLogWork(), None
    if keys is not None:
        from .whatif_inputs import server_keys

        known = server_keys(keys)
    logs = [read_binary_log(path, keys=known) for path in paths]
    workload = _loaded(reader.read_files(logs, whole=options.whole), options)
    workload.passed = reader.passed
    if not reader.transactions:
        raise without_transactions(paths[-1], "schedule")
    source = {"kind": "binlog", "files": list(map(str, paths))}
    notes = [note for log in logs for note in log.notes]
    unnamed = {table for log in logs for table in log.tables_without_keys}
    _tell_log(source, notes, unnamed, workload, options)


def whatif_server(url: str, transactions: int, seconds: float, options: WhatIfOptions) -> None:
    """Compares the schemes on what a server commits from now on: so many transactions, or in so
    many seconds, whichever comes first.

    Raises:
        SourceRefused, SourceLost, InvalidSetting, InvalidBinaryLog: Its log cannot be read.
        InvalidOption: It has committed nothing.
    """
    from .whatif_inputs import Limits, LiveLog

    log, reader = LiveLog(url, Limits(transactions, seconds)), BinaryLogWork()
    workload = _loaded(reader.read(str(log.url), log), options)
    if not reader.transactions:
        expected = f"a server that commits within {seconds:g} seconds (--seconds)"
        raise InvalidOption(name="--source", value=str(log.url), expected=expected)
    unnamed = log.reader.tables_without_keys
    notes = [f"{table}: {why}" for table, why in unnamed.items()]
    source = {"kind": "server", "files": [str(log.url)]}
    _tell_log(source, notes, set(unnamed), workload, options)


def whatif_history(folder: Path, options: WhatIfOptions) -> None:
    """Compares the schemes on a group's certification log, and prints the result.

    Raises:
        InvalidOption: there is no log in the folder, or nothing was certified.
        OSError: A file cannot be read or written.
    """
    from .whatif_inputs import longest_history

    history, reader = longest_history(folder), HistoryWork()
    workload = _loaded(reader.read(history.rows()), options)
    if not workload.transactions:
        expected = "a log with a certified transaction"
        raise InvalidOption(name="--certification-log", value=str(folder), expected=expected)
    notes = [f"scheduled is the longest history, of {history.observer}; {history.others} others"]
    source = {
        "kind": "certification_log",
        "files": [str(folder)],
        "conflicts": reader.verdicts[Verdict.CONFLICT],
        "too_old": reader.verdicts[Verdict.TOO_OLD],
        "refused": reader.verdicts[Verdict.REFUSED],
    }
    _tell(source, [*notes, *_keys_note(reader)], workload, options)


def whatif_member(address: str, credentials: Credentials, options: WhatIfOptions) -> None:
    """Compares the schemes on what a running member has in its binary log, and prints the result.

    Raises:
        As `MemberLog.rows`.
        InvalidOption: It has no transaction.
    """
    from .whatif_inputs import MemberLog

    reader = HistoryWork()
    workload = _loaded(reader.read(MemberLog(address, credentials).rows()), options)
    if not workload.transactions:
        expected = "a member with a transaction in its binary log"
        raise InvalidOption(name="--member", value=address, expected=expected)
    _tell({"kind": "member", "files": [address]}, _keys_note(reader), workload, options)


def _keys_note(reader: HistoryWork) -> list[str]:
    """Returns the note that a history lacks keys; none if it has all."""
    if reader.has_keys:
        return []
    return ["the log has no keys in words: rows are shown as hashes, tables by guess"]


def _loaded(works: Iterator[Work], options: WhatIfOptions) -> Workload:
    """Returns the workload of a stream, and shows how far it is read."""
    with progress("reading", number="{:,.0f} transactions".format) as state:
        return load(state.counted(works, PROGRESS_LINES), options.costs)


def _tell_log(
    source: JsonObject,
    notes: list[str],
    unnamed: set[str],
    workload: Workload,
    options: WhatIfOptions,
) -> None:
    """Compares, and tells what a binary log does not name. `unnamed`: tables without keys."""
    if unnamed:
        notes.append(
            f"no bound is known, and schemes that compare rows are drawn too slow: {len(unnamed)} "
            f"tables stand for their rows; name a server that has them (--keys mysql://...), or "
            f"set binlog_row_metadata=FULL at the one that writes the log, and give each table a "
            f"primary key"
        )
    _tell({**source, "tables_without_keys": sorted(unnamed)}, notes, workload, options)


def _group(workload: Workload, transactions_max: int) -> str:
    """Makes the group commits if the stream does not give them; returns what it did, in words."""
    if transactions_max < 2:
        return (
            "the stream has no commit ids: group-commit runs every transaction alone "
            "(--commit-group-transactions makes groups)"
        )
    workload.group(transactions_max)
    return f"the stream has no commit ids: groups of up to {transactions_max} were made"


def _tell(source: JsonObject, notes: list[str], workload: Workload, options: WhatIfOptions) -> None:
    """Compares, with the group commits that the stream lacks, and prints or writes the report."""
    if not workload.has_commit_ids:
        notes.append(_group(workload, options.commit_group_transactions))
    notes += options.notes
    sample = sample_of(workload, whole=options.whole)
    tasks = [(line, workers) for line in options.lines for workers in options.workers]
    done = runs_of(sample.windows, tasks, options.processes)
    compared = [
        Compared(line, [done[line, workers] for workers in options.workers])
        for line in options.lines
    ]
    report = document({**source, "notes": notes}, workload, sample, compared, options.workers)
    if options.html is not None:
        options.html.write_text(page(report), encoding="utf-8")
    if options.as_json:
        sys.stdout.write(json.dumps(report, separators=(",", ":")) + "\n")
    else:
        console = Console()
        for table in tables(report):
            console.print(table)
        for note in (*_settings_notes(report), *notes, *_windows_note(report)):
            console.print(f"Note: {note}", markup=False, highlight=False)


def _settings_notes(report: JsonObject) -> list[str]:
    """Returns for each kind of server its setting with which the stream is fastest."""
    best: dict[str, tuple[float, str]] = {}
    for scheme in report["schemes"]:
        speedup = scheme["runs"][-1]["speedup"]
        for setting in scheme["settings"]:
            server = setting["server"]
            if server not in best or best[server][0] < speedup:
                at_source = f", and {setting['source']} at the source" * bool(setting["source"])
                text = f"{setting['replica']}{at_source}, as {scheme['label']}"
                best[server] = speedup, text
    workers = report["workers"][-1]
    return [
        f"the fastest setting of {server} is {text}: {speedup:.2f} with {workers} workers"
        for server, (speedup, text) in best.items()
    ]


def _windows_note(report: JsonObject) -> list[str]:
    """Returns the note that says how much of a long stream was scheduled; none if all was."""
    windows, read = report["windows"], report["workload"]["read"]
    if windows is None:
        return []
    return [
        f"scheduled were {windows['count']} windows of the stream, {windows['entries']:,} of its "
        f"entries ({windows['share']:.1%}); a window's speed-up differs from theirs together by "
        f"{windows['spread']:.1%} at most ({windows['spread_of']}); work, critical path and hot "
        f"rows are those of the {read:,} that were read; --whole takes all of it"
    ]


def tables(report: JsonObject) -> list[Table]:
    """Returns the report as tables: the stream, the schemes, the hot rows."""
    return [_stream_table(report), _scheme_table(report), _hot_table(report)]


def _stream_table(report: JsonObject) -> Table:
    table = Table(title="The stream", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    workload, path = report["workload"], report["critical_path"]
    left_out = sum(report["source"].get(name, 0) for name in ("conflicts", "too_old", "refused"))
    table.add_row("transactions", f"{workload['transactions']:,}")
    table.add_row("  left out, because they were not certified", f"{left_out:,}")
    if workload["read"] != workload["entries"]:
        table.add_row("  read: what follows is theirs", f"{workload['read']:,}")
    table.add_row("  without write set", f"{workload['without_write_set']:,}")
    table.add_row("work, one after the other", _seconds(workload["serial_us"]))
    table.add_row("critical path", _seconds(path["length_us"]))
    table.add_row("  transactions on it", f"{path['transactions']:,}")
    fastest = f"{path['speedup_max']:,.1f}" if path["is_known"] else UNKNOWN
    table.add_row("bound, however many workers there are", fastest)
    for name, known in report["stamps"].items():
        table.add_row(f"modified interval of the {name}, mean", f"{known['interval_mean']:,.1f}")
    return table


def _scheme_table(report: JsonObject) -> Table:
    """Returns the speed-up by workers, then the result of the run with the most workers."""
    workers = report["workers"]
    title = f"Speed-up over one worker; share of the bound and time lost: {workers[-1]:,} workers"
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("scheme", min_width=SCHEME_COLUMNS)
    for name in (*(f"{number:,}" for number in workers), "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("lost to")
    is_known = report["critical_path"]["is_known"]
    bounds_of = [f"{one['speedup']:.2f}" for one in report["bounds"]]
    bound = ["bound", *bounds_of] if is_known else [f"bound: {UNKNOWN}"]
    table.add_row(*bound, end_section=True)
    for scheme in report["schemes"]:
        runs = scheme["runs"]
        last = runs[-1]
        table.add_row(
            scheme["label"],
            *(f"{run['speedup']:.2f}" for run in runs),
            f"{last['bound_share']:.0%}" if is_known else "",
            _lost_to(last),
        )
    return table


def _lost_to(run: JsonObject) -> str:
    """Returns the cause that cost the workers of a run most of their idle time."""
    times = run["worker_time_us"]
    lost = {
        **times["idle"],
        "commit_order": times["waiting_to_commit"],
        "processor": times["processor"],
    }
    cause = max(lost, key=lambda name: lost[name])
    return cause.replace("_", " ") if lost[cause] else ""


def _hot_table(report: JsonObject) -> Table:
    table = Table(title="Hot rows", title_justify="left")
    table.add_column("row")
    table.add_column("writers", justify="right")
    table.add_column("on the critical path", justify="right")
    for hot in report["hot_items"][:HOT_SHOWN]:
        path_us = hot["critical_path_us"]
        table.add_row(Text(hot["item"]), f"{hot['writers']:,}", _seconds(path_us))
    return table


def _seconds(time_us: int) -> str:
    return f"{time_us / 1_000_000:,.3f} s"
