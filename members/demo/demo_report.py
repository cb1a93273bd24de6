"""Reports what a demo did and what its checks found, and keeps its folder if they found something.

Answers go to standard output, as a table or as JSON; what happens meanwhile to standard error.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from groupcert.v1.group_pb2 import MemberStatus

from ...certifier.errors import InvalidRequest
from ..host.private_files import keep_private
from ..host.servers import ServerMissing
from .group_checks import Findings
from .load import LoadCounts

Row = Sequence[RenderableType]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """The output of `--json`; that of a demo on SQL servers has more."""

    members: int
    seconds: float
    certified: int
    conflicts: int
    acknowledged: int
    lost: int
    converged: bool
    invariant_ok: bool
    exactly_once: bool
    stamps_valid: bool
    commits_per_second: float
    parallelism_mean: float
    findings: list[str]


def summary_of(
    statuses: Sequence[MemberStatus], counts: LoadCounts, took: float, findings: Findings
) -> DemoSummary:
    """Returns the summary of a load that took `took` seconds."""
    applied = [status.parallelism_mean for status in statuses]
    return DemoSummary(
        members=len(statuses),
        seconds=round(took, 2),
        certified=max(status.transactions_certified for status in statuses),
        conflicts=max(status.transactions_conflict for status in statuses),
        acknowledged=len(counts.committed_ids),
        lost=findings.lost,
        converged=findings.converged,
        invariant_ok=findings.invariant_ok,
        exactly_once=findings.exactly_once,
        stamps_valid=findings.stamps_valid,
        commits_per_second=round(len(counts.committed_ids) / took, 1),
        parallelism_mean=round(sum(applied) / len(applied), 2),
        findings=findings.texts,
    )


class Answer(NamedTuple):
    """What a demo says of itself beside its summary."""

    converged: str
    """What is equal everywhere."""
    place: str
    """Where the sum was taken."""
    story: Sequence[RenderableType]
    """Stands below the checks."""
    more: Mapping[str, object]
    """Fields of the JSON document."""


def finish(
    console: Console, summary: DemoSummary, answer: Answer, folder: Path, *, as_json: bool
) -> int:
    """Prints the answer of a demo of a group. Returns the exit code, as `report`."""
    document = {**asdict(summary), **answer.more}
    shown = (_checks(summary, answer), *answer.story)
    return report(console, document, shown, summary.findings, folder, as_json=as_json)


def report(
    console: Console,
    document: Mapping[str, object],
    shown: Iterable[RenderableType],
    findings: Sequence[str],
    folder: Path,
    *,
    as_json: bool,
) -> int:
    """Prints the answer, as JSON or as what is shown. Returns the exit code: 0, with the folder
    removed, or 1, with the findings in words.
    """
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        out = Console()
        for each in shown:
            out.print(each)
    if not findings:
        _remove(folder)
        return 0
    for finding in findings:
        console.print(Text(finding, "red"))
    console.print(f"the demo's folder is kept: {folder}")
    return 1


def _checks(summary: DemoSummary, answer: Answer) -> Table:
    """Returns the lines of the checks."""
    table = Table(title="what the checks found", show_header=False)
    for name, passed in (
        (f"the sum of all accounts is unchanged, at every {answer.place}", summary.invariant_ok),
        (answer.converged, summary.converged),
        ("no acknowledged commit is lost", not summary.lost),
        ("every acknowledged commit is there exactly once", summary.exactly_once),
        ("no two overlapping transactions ran at once", summary.stamps_valid),
    ):
        table.add_row(name, Text("yes", "green") if passed else Text("NO", "bold red"))
    return table


@contextmanager
def demo_folder() -> Iterator[Path]:
    """Makes a demo's folder; removes it if the user ends the demo, or it cannot be run here."""
    keep_private()
    folder = Path(tempfile.mkdtemp(prefix="groupcert-demo-"))
    try:
        yield folder
    except (KeyboardInterrupt, InvalidRequest, ServerMissing):
        _remove(folder)
        raise


class LiveTable:
    """Shows servers while clients write, on a terminal; nothing of it stays.

    `rows` asks them; a row has as many cells as there are columns.
    """

    def __init__(
        self, console: Console, columns: Sequence[str], rows: Callable[[], Iterable[Row]]
    ) -> None:
        self.live = Live(console=console, refresh_per_second=8, transient=True)
        self._columns = columns
        self._rows = rows
        self._last = (0, 0.0)

    def draw(self, commits: int, elapsed: float) -> None:
        """Draws the rows, and the commits since the last call as a rate."""
        last_commits, last_elapsed = self._last
        rate = (commits - last_commits) / max(elapsed - last_elapsed, 0.001)
        self._last = (commits, elapsed)
        table = Table(*self._columns)
        for row in self._rows():
            table.add_row(*row)
        title = Text(f"{elapsed:4.1f} s   {commits:,} commits   {rate:,.0f}/s")
        self.live.update(Group(title, table))


def _remove(folder: Path) -> None:
    """Removes a folder, in which a server that ends may remove files, too."""

    def check(_function: object, _path: str, found: tuple[object, BaseException, object]) -> None:
        if not isinstance(found[1], FileNotFoundError):
            raise found[1]

    shutil.rmtree(folder, onerror=check)
