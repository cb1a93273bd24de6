"""`groupcert audit`: checks options, starts Spark, shows progress and result.

The rule it keeps: output of Spark and Java while they run goes to a file, and is shown if they
fail; the terminal shows how far the audit is, and what it has found.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ...certifier.audit.answers.errors import SparkFailed
from ...certifier.audit.answers.result import JsonObject
from ...certifier.audit.archive import submit_command, write_archive
from ...certifier.audit.audit_run import audit, has_findings, import_modules, known_jobs
from ...certifier.audit.rows.kept import paths_to_read
from ...certifier.audit.spark.audit_progress import (
    AuditProgress,
    OnProgress,
    ProgressLines,
    tasks_text,
)
from ...certifier.audit.spark.footers import check_paths, has_few_rows
from ...certifier.audit.spark.java import is_heap
from ...certifier.audit.spark.spark_session import spark_session
from ..errors.usage import InvalidOption, MissingOption

_CAUSE_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The options of the command."""

    paths: tuple[str, ...]
    out: str
    master: str | None
    memory: str
    jobs: tuple[str, ...]
    spark_settings: tuple[str, ...]
    since: str | None = None

    def settings(self) -> dict[str, str]:
        """Returns Spark's settings by name.

        Raises:
            InvalidOption: One of the options cannot be.
            MissingOption: One is not given.
        """
        if not self.paths:
            raise MissingOption(name="PATHS", ways="behind the verb")
        if not self.out:
            raise MissingOption(name="out", ways="as --out")
        if not is_heap(self.memory):
            raise InvalidOption(name="--memory", value=self.memory, expected="such as 4g or 800m")
        for name in self.jobs:
            if name not in known_jobs():
                expected = f"one of {', '.join(known_jobs())}"
                raise InvalidOption(name="--job", value=name, expected=expected)
        settings = {}
        for setting in self.spark_settings:
            name, found, value = setting.partition("=")
            if not (found and name.startswith("spark.")):
                expected = "spark.NAME=VALUE"
                raise InvalidOption(name="--spark-setting", value=setting, expected=expected)
            settings[name] = value
        return settings


def main(options: AuditOptions, *, as_json: bool) -> int:
    """Runs an audit; returns the exit code."""
    settings = options.settings()
    with _java_aside() as terminal, _shown(terminal) as on_progress:
        with _session(options, settings) as spark:
            summary = _audited(spark, options, options.since, on_progress)
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines(summary, options.out)))
    return int(has_findings(summary))


def audits(options: AuditOptions, again: Callable[[], bool]) -> Iterator[JsonObject]:
    """Yields the summaries of audits, each of which goes on from the one before, in one session.

    Args:
        again: waits until the next one is due; False ends it.
    """
    settings = options.settings()
    since = options.since
    with _java_aside() as terminal, _session(options, settings) as spark:
        while True:
            yield _audited(spark, options, since, ProgressLines(terminal))
            since = options.out
            if not again():
                return


@contextmanager
def _session(options: AuditOptions, settings: dict[str, str]) -> Iterator[SparkSession]:
    """Yields a session; while its Java starts, another thread imports what the jobs need."""
    paths = options.paths if options.since is None else paths_to_read(options.paths, options.since)
    if options.master is None:
        check_paths(options.paths)
    few = options.master is None and has_few_rows(paths)
    with ThreadPoolExecutor(1) as ahead:
        ahead.submit(import_modules, options.jobs or known_jobs())
        with spark_session(
            options.master, memory=options.memory, few_rows=few, settings=settings
        ) as spark:
            yield spark


def _audited(
    spark: SparkSession, options: AuditOptions, since: str | None, on_progress: OnProgress
) -> JsonObject:
    return audit(
        spark,
        options.paths,
        options.out,
        jobs=options.jobs or None,
        since=since,
        on_progress=on_progress,
    )


def write_audit_archive(path: Path) -> int:
    """Writes the file for spark-submit, and prints how to use it; returns the exit code."""
    write_archive(path)
    sys.stdout.write(f"{submit_command(path)}\n")
    return 0


def lines(summary: JsonObject, out: str) -> list[str]:
    """Returns the summary as lines of text."""
    findings, histories = summary["findings"], summary["histories"]
    assert isinstance(findings, dict) and isinstance(histories, list)
    transactions = sum(history["transactions"] for history in histories)
    names = {history["observer"] for history in histories}
    scope = (
        f"{transactions:,} decisions in {len(histories)} histories of {', '.join(sorted(names))}"
    )
    told = [f"{scope}, {summary['seconds']} s", *_continued(summary["since"])]
    told += [
        f"{code['severity']:8}{code['count']:>10,}  {code['code']}: {code['meaning']}"
        for code in findings["by_code"]
    ]
    found = findings["errors"] + findings["warnings"]
    told.append(f"{found:,} finding{'s' * (found != 1)}" if found else "no findings")
    told.append(f"report: {_report(out)}")
    return told


def _continued(since: object) -> Iterator[str]:
    """Yields sentences on the audit that this one went on from."""
    if not isinstance(since, dict):
        return
    if since["whole_because"]:
        yield f"audited from the beginning: {since['whole_because']}"
        return
    rows, files = since["new_rows"], since["new_files"]
    yield f"{rows:,} rows in {files:,} files are new since {since['report']}"
    if since["files_gone"]:
        yield f"{since['files_gone']:,} files that were audited then are no longer there"


def _report(out: str) -> str:
    """Returns where the report is, as an address that can be opened."""
    local = Path(out) / "report.html"
    return str(local.resolve()) if local.is_file() else f"{out.rstrip('/')}/report.html"


@contextmanager
def _java_aside() -> Iterator[TextIO]:
    """Sends what child processes write to standard error to a file; yields the real one.

    Prints Java's output if Spark fails.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    terminal = os.fdopen(os.dup(kept), "w", buffering=1)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield terminal
        except SparkFailed:
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines()
            terminal.write("".join(f"{line}\n" for line in lines[-_CAUSE_LINES:]))
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            terminal.close()


@contextmanager
def _shown(terminal: TextIO) -> Iterator[OnProgress]:
    """Yields the function that shows progress: bars on a terminal, else lines."""
    if not terminal.isatty():
        yield ProgressLines(terminal)
        return
    width = shutil.get_terminal_size().columns
    console = Console(file=terminal, width=width)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("[dim]{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        yield _bars(bars)


def _bars(bars: Progress) -> Callable[[AuditProgress], None]:
    """Shows a bar for each step."""
    tasks: dict[str, TaskID] = {}

    def show(progress: AuditProgress) -> None:
        if progress.name not in tasks:
            text = f"[bold]{progress.name:10}[/] {progress.text:45}"
            tasks[progress.name] = bars.add_task(text, total=None, state="")
        task = tasks[progress.name]
        if progress.is_done:
            bars.update(task, total=1, completed=1, state="")
            bars.stop_task(task)
        else:
            total = progress.tasks or None
            state = tasks_text(progress)
            bars.update(task, total=total, completed=progress.tasks_done, state=state)

    return show
