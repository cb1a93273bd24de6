"""`groupcert demo`: runs a group and clients on this machine, and checks what the members did.

A bank on the embedded store: clients at every member transfer amounts between accounts, in conflict
with one another now and then. When they stop, `members/demo/checks.py` checks the members' rows and
histories.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.client.client import Client
from groupcert.members.demo.checks import Findings, check_group, settle
from groupcert.members.demo.load import BankWorkload, LoadCounts, run_load
from groupcert.members.demo.local_group import LocalGroup
from groupcert.v1.group_pb2 import MemberStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """The output of `--json`."""

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


def main(
    *,
    members: int,
    clients: int,
    seconds: float,
    as_json: bool,
    certification_log: Path | None = None,
) -> int:
    """Runs the demo; returns 1 if a check failed, and keeps the group's folder then.

    `certification_log`: an empty folder, or none yet, which gets the logs of all members.

    Raises:
        InvalidSetting: There is something in that folder.
    """
    settings: dict[str, bool | int] = {}
    if certification_log is not None:
        _check_empty(certification_log)
        # Several files, so that members report chains of their written rows.
        settings |= {"certification_log_keys": True, "certification_log_file_seconds": 2}
    console = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="groupcert-demo-"))
    with ExitStack() as stack:
        console.print(f"starting a log server and {members} members in {folder}")
        # The checks need to know when the appliers ran what.
        logs = certification_log or folder / "certification-logs"
        group = stack.enter_context(
            LocalGroup(folder, members=members, settings=settings, certification_logs=logs)
        )
        observers = [stack.enter_context(Client(address)) for address in group.addresses.values()]
        workload = BankWorkload()
        workload.prepare(observers[0])
        with _live_view(console, observers) as on_tick:
            counts, took = run_load(
                workload,
                list(group.addresses.values()),
                clients=clients,
                seconds=seconds,
                on_tick=on_tick,
            )
        console.print("clients stopped; checking every member")
        statuses = settle(observers)
        findings = check_group(workload, observers, statuses, counts)
    summary = _summary(statuses, counts, took, findings)
    _show(console, summary, counts, as_json=as_json)
    if certification_log is not None:
        console.print(f"the members' certification logs: {certification_log}")
    if summary.findings:
        console.print(f"the group's folder is kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _check_empty(folder: Path) -> None:
    """Raises InvalidSetting if the folder is not empty: other logs would contradict these."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        expected = "a folder that is empty, or not there"
        raise InvalidSetting(name="--certification-log", value=str(folder), expected=expected)


def _summary(
    statuses: Sequence[MemberStatus], counts: LoadCounts, took: float, findings: Findings
) -> DemoSummary:
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


def _show(console: Console, summary: DemoSummary, counts: LoadCounts, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(asdict(summary)) + "\n")
        return
    table = Table(title="what the checks found", show_header=False)
    for name, passed in (
        ("the sum of all accounts is unchanged, at every member", summary.invariant_ok),
        ("all members are equal, row for row and digest for digest", summary.converged),
        ("no acknowledged commit is lost", not summary.lost),
        ("every acknowledged commit is there exactly once", summary.exactly_once),
        ("no two overlapping transactions ran at once", summary.stamps_valid),
    ):
        table.add_row(name, Text("yes", "green") if passed else Text("NO", "bold red"))
    out = Console()
    out.print(table)
    out.print(
        f"{summary.acknowledged:,} commits acknowledged in {summary.seconds} s "
        f"({summary.commits_per_second:,.0f}/s), {summary.conflicts:,} conflicts, "
        f"{len(counts.unknown_ids)} unknown; parallelism of the appliers "
        f"{summary.parallelism_mean}"
    )
    for finding in summary.findings:
        console.print(Text(finding, "red"))


@contextmanager
def _live_view(console: Console, observers: Sequence[Client]) -> "Iterator[LiveView]":
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield LiveView(live, observers)


class LiveView:
    """Shows the members' statuses while clients write; called a few times a second."""

    def __init__(self, live: Live, observers: Sequence[Client]) -> None:
        self._live = live
        self._observers = observers
        self._last = (0, 0.0)

    def __call__(self, commits: int, elapsed: float) -> None:
        """Draws the members' statuses, and the commits since the last call as a rate."""
        last_commits, last_elapsed = self._last
        rate = (commits - last_commits) / max(elapsed - last_elapsed, 0.001)
        self._last = (commits, elapsed)
        table = Table("member", "state", "certified", "conflicts", "relay queue", "parallelism")
        for client in self._observers:
            status = client.status().observer
            table.add_row(
                status.name,
                "ONLINE" if not status.reason else status.reason,
                f"{status.transactions_certified:,}",
                f"{status.transactions_conflict:,}",
                f"{status.relay_queue_length:,}",
                f"{status.parallelism_mean:.2f}",
            )
        self._live.update(
            Group(Text(f"{elapsed:4.1f} s   {commits:,} commits   {rate:,.0f}/s"), table)
        )
