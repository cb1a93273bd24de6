"""`groupcert demo`: runs a group and clients on this machine, and checks what the members did.

A bank on the embedded store: clients at every member transfer amounts between accounts, in conflict
with one another now and then. When they stop, `members/demo/group_checks.py` checks the members'
rows and histories.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from ...certifier.errors import InvalidSetting
from ..client.client import Client
from .demo_report import Answer, DemoSummary, LiveTable, Row, demo_folder, finish, summary_of
from .group_checks import check_group, settle
from .load import BankWorkload, LoadCounts, run_load
from .local_group import LocalGroup

COLUMNS = ("member", "state", "certified", "conflicts", "relay queue", "parallelism")


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
    console = Console(stderr=True)
    with ExitStack() as stack:
        folder = stack.enter_context(demo_folder())
        group = LocalGroup(folder, members=members, **demo_options(folder, certification_log))
        console.print(f"starting a log server and {members} members in {folder}")
        stack.enter_context(group)
        observers = [stack.enter_context(Client(address)) for address in group.addresses.values()]
        workload = BankWorkload()
        workload.prepare(observers[0])
        view = LiveTable(console, COLUMNS, lambda: map(_row, observers))
        with view.live:
            counts, took = run_load(
                workload,
                list(group.addresses.values()),
                clients=clients,
                seconds=seconds,
                on_tick=view.draw,
            )
        console.print("clients stopped; checking every member")
        statuses = settle(observers)
        findings = check_group(workload, observers, statuses, counts)
    summary = summary_of(statuses, counts, took, findings)
    if certification_log is not None:
        console.print(f"the members' certification logs: {certification_log}")
    return finish(console, summary, _answer(summary, counts), folder, as_json=as_json)


def demo_options(folder: Path, certification_log: Path | None) -> dict[str, Any]:
    """Returns the options of a demo's `LocalGroup`.

    Raises:
        InvalidSetting: There is something in the folder for certification logs.
    """
    # The checks need to know when the appliers ran what; they ask the members, and no file is read.
    settings: dict[str, bool | int] = {"certification_log_file_seconds": 0}
    if certification_log is not None:
        _check_empty(certification_log)
        # Several files, so that members report chains of their written rows.
        settings |= {"certification_log_keys": True, "certification_log_file_seconds": 2}
    logs = certification_log or folder / "certification-logs"
    return {"settings": settings, "certification_logs": logs, "trims_log": True}


def _check_empty(folder: Path) -> None:
    """Raises InvalidSetting if the folder is not empty: other logs would contradict these."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        expected = "a folder that is empty, or not there"
        raise InvalidSetting(name="--certification-log", value=str(folder), expected=expected)


def _answer(summary: DemoSummary, counts: LoadCounts) -> Answer:
    text = (
        f"{summary.acknowledged:,} commits acknowledged in {summary.seconds} s "
        f"({summary.commits_per_second:,.0f}/s), {summary.conflicts:,} conflicts, "
        f"{len(counts.unknown_ids)} unknown; parallelism of the appliers "
        f"{summary.parallelism_mean}"
    )
    converged = "all members are equal, row for row and digest for digest"
    return Answer(converged, "member", [text], {})


def _row(client: Client) -> Row:
    """Returns the row of a member, as the table has it while clients write."""
    status = client.status().observer
    return (
        status.name,
        status.reason or "ONLINE",
        f"{status.transactions_certified:,}",
        f"{status.transactions_conflict:,}",
        f"{status.relay_queue_length:,}",
        f"{status.parallelism_mean:.2f}",
    )
