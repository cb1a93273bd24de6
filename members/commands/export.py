"""`groupcert export`: writes certification logs from sources that are no member's log.

The rule it keeps: the files of an export appear in their folder when all of them are whole, in the
order of the history, or not at all; and no existing file is replaced. Rows are made and written one
row group at a time, however long the history is.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ...applier.mysql_logs import certification_rows as binary_log_history
from ...applier.mysql_logs.binary_log_reader import read_binary_log, without_transactions
from ...certifier.core import CertifierOptions
from ...certifier.errors import InvalidSetting, InvalidTrace
from ...certifier.history import trace_rows as trace_history
from ...certifier.history.schema import Cursor, RecordKind, Row, Verdict
from ..certification_log.export_folder import (
    check_absent,
    locked_work_folder,
    name_files,
)
from ..certification_log.files import FULL_DISK_NUMBERS, write_file
from ..host.private_files import keep_private
from ..host.progress_bar import progress
from .replay import opened, read_lines

FILE_ROWS = 1_000_000
PROGRESS_ROWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The destination of an export. `file_rows`: rows of each file but the last one. `keys`: write
    readable keys of rows, too.
    """

    out: Path
    file_rows: int = FILE_ROWS
    keys: bool = False
    as_json: bool = False


@dataclass(slots=True)
class Exported:
    """The files an export has written so far; `files` are paths with their rows."""

    observer: str
    files: list[tuple[Path, int]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    cursor: Cursor = field(default_factory=Cursor)
    has_observer: bool = False
    """Whether a record is the observer's, or has it in a view."""


def export_trace(
    trace: str, certifier: CertifierOptions, observer: str | None, options: ExportOptions
) -> None:
    """Writes the history of a trace (a path, or `-`), certified as `observer` sees it.

    Raises:
        InvalidTrace: a line cannot be read, or there is no transaction.
        InvalidSetting: the observer has a log in the folder, or a name that no file can have.
        OSError: there is no such file, or it cannot be read or written.
    """
    history = trace_history.TraceHistory(certifier, observer, keys=options.keys)
    with ExitStack() as stack:
        source = stack.enter_context(opened(trace))
        lines = stack.enter_context(closing(read_lines(source)))
        rows = _with_transactions(
            history.rows(lines),
            lambda: InvalidTrace(
                line=history.line,
                problem="the trace ends without a transaction",
                expected="one at least to export",
            ),
        )
        exported = write_history(rows, observer or trace_history.OBSERVER, options)
    tell(exported, options, "trace", absent_observer(exported, observer))


def export_binary_log(paths: Sequence[Path], observer: str | None, options: ExportOptions) -> None:
    """Writes the history in the files of a binary log.

    Raises:
        InvalidBinaryLog: a file cannot be read, or there is no transaction.
        InvalidSetting: the observer has a log in the folder, or a name that no file can have; or a
            file is given twice.
        OSError: there is no such file, or it cannot be read or written.
    """
    for number, path in enumerate(paths):
        if any(path.samefile(other) for other in paths[:number]):
            raise InvalidSetting(name="binlog", value=path, expected="each file once")
    history = binary_log_history.BinaryLogHistory(observer, keys=options.keys)
    logs = [read_binary_log(path) for path in paths]

    rows = _with_transactions(history.rows(logs), lambda: without_transactions(paths[-1], "export"))
    exported = write_history(rows, observer or binary_log_history.OBSERVER, options)
    notes = [
        f"{paths[number]} begins before the end of the file before it: are they in the log's order?"
        for number in history.unordered
    ]
    notes += [note for log in logs for note in log.notes]
    tell(exported, options, "binary_log", [*dict.fromkeys(notes)])


def write_history(rows: Iterator[Row], observer: str, options: ExportOptions) -> Exported:
    """Writes the rows of one history, which are all of the observer's, into its files.

    Raises:
        InvalidSetting: the observer has a log in the folder, or another export is at work on it,
            or no file can have its name.
        OSError: they cannot be written; the folder has nothing of them. So it is for whatever the
            rows raise.
    """
    keep_private([options.out])
    check_absent(options.out, observer)
    exported = Exported(observer)
    with _full_disk_named(options.out), locked_work_folder(options.out, observer) as work:
        with progress("exporting", number="{:,.0f} rows".format) as state:
            remaining = state.counted(_counted(rows, exported), PROGRESS_ROWS)
            while written := write_file(
                work, islice(remaining, options.file_rows), exported.cursor
            ):
                exported.files.append((options.out / written.path.name, written.rows))
                exported.cursor = written.cursor
        check_absent(options.out, observer)
        name_files(work, [path.name for path, _ in exported.files])
    return exported


def absent_observer(exported: Exported, observer: str | None) -> list[str]:
    """Returns a note if a member was named as observer and does not occur in the history."""
    if observer is None or exported.has_observer:
        return []
    return [f"{observer} is in none of its records: every transaction is told as another member's"]


def tell(exported: Exported, options: ExportOptions, source: str, notes: Sequence[str]) -> None:
    """Prints what was written."""
    verdicts = {verdict.value: exported.verdicts[verdict.value] for verdict in Verdict}
    if options.as_json:
        document = {
            "source": source,
            "observer": exported.observer,
            "out": str(options.out),
            "files": [{"path": str(path), "rows": rows} for path, rows in exported.files],
            "rows": exported.cursor.number,
            "kinds": {kind.value: exported.kinds[kind.value] for kind in RecordKind},
            "verdicts": verdicts,
            "chain": exported.cursor.chain.hex(),
            "notes": list(notes),
        }
        sys.stdout.write(json.dumps(document, separators=(",", ":")) + "\n")
        return
    table = Table(title="Export", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    table.add_row("observer", exported.observer)
    for kind, count in exported.kinds.items():
        table.add_row(f"rows: {kind.replace('_', ' ')}", f"{count:,}")
    for verdict, count in verdicts.items():
        table.add_row(f"transactions: {verdict.replace('_', ' ')}", f"{count:,}")
    table.add_row("files", f"{len(exported.files):,}")
    console = Console()
    console.print(table)
    for line in (*(f"Note: {note}" for note in notes), f"The log is in {options.out}"):
        console.print(line, markup=False, highlight=False)


def _members_in(row: Row) -> Sequence[object]:
    """Returns the members that a row names."""
    members = row.get("members")
    return [row.get("origin"), *(members if isinstance(members, list) else ())]


def _with_transactions(rows: Iterator[Row], error: Callable[[], Exception]) -> Iterator[Row]:
    """Yields the rows; raises the error at their end if none is of a transaction."""
    has_transaction = False
    for row in rows:
        has_transaction |= row["kind"] == RecordKind.TRANSACTION
        yield row
    if not has_transaction:
        raise error()


@contextmanager
def _full_disk_named(out: Path) -> Iterator[None]:
    """Turns an error of a full disk into one that names the folder and the next step."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK_NUMBERS:
            raise
        advice = "free some, or name another folder with --out; nothing of the export is left"
        text = f"{os.strerror(error.errno).lower()}: {advice}"
        raise OSError(error.errno, text, str(out)) from error


def _counted(rows: Iterator[Row], exported: Exported) -> Iterator[Row]:
    """Counts the rows that are taken."""
    for row in rows:
        exported.kinds[str(row["kind"])] += 1
        if not exported.has_observer:
            exported.has_observer = exported.observer in _members_in(row)
        if "verdict" in row:
            exported.verdicts[str(row["verdict"])] += 1
        yield row
