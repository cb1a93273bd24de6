"""Scripts in tests/testdata/schemes: which transactions a scheme starts, on which worker, and what
the next one waits for.

Method: one handler a command; the driver takes after each change until nothing more starts. A job
is drawn by its positions, `5+6` if it has several, `5[shop.orders]` if it is a part.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes import Scheme
from groupcert.applier.schemes.assigned_partitions import WORKER_QUEUE_MAX
from groupcert.applier.schemes.by_database import DATABASES_MAX, ByDatabase
from groupcert.applier.schemes.by_rows import ByRows
from groupcert.applier.schemes.by_table import ByTable
from groupcert.applier.schemes.commit_parent import CommitParent
from groupcert.applier.schemes.group_commit import GroupCommit
from groupcert.applier.schemes.jobs import Conflicts, Jobs, JobsOptions
from groupcert.applier.schemes.logical_clock import LogicalClock, Policy
from tests.applier.scheme_driver import ROOM, SchemeDriver, entry, label
from tests.datadriven import Command, parse_command, run_script

SCRIPTS = sorted((Path(__file__).parents[2] / "testdata" / "schemes").glob("*.txt"))


def logical_clock(
    *,
    policy: str = "at-most-one",
    run_max: str = "1",
    run_min: str = "1",
    commit_order: str = "yes",
) -> Scheme:
    """[policy=] [run_max=] [run_min=] [commit_order=no]"""
    return LogicalClock(
        Policy(policy),
        job_transactions_max=int(run_max),
        job_transactions_min=int(run_min),
        preserve_commit_order=commit_order == "yes",
    )


def commit_parent(*, commit_order: str = "yes") -> Scheme:
    """[commit_order=no]"""
    return CommitParent(preserve_commit_order=commit_order == "yes")


def jobs(*, conflicts: str, unordered: str = "no", **limits: str) -> Scheme:
    """scheme name=jobs conflicts= [unordered] [any limit of `JobsOptions`]"""
    return Jobs(
        JobsOptions(
            conflicts=Conflicts(conflicts),
            preserve_commit_order=unordered == "no",
            **{name: int(limit) for name, limit in limits.items()},
        )
    )


def database(
    *,
    databases_max: str = str(DATABASES_MAX),
    queue_max: str = str(WORKER_QUEUE_MAX),
    ordered: str = "no",
) -> Scheme:
    """scheme name=database [databases_max=] [queue_max=] [ordered]"""
    return ByDatabase(
        databases_max=int(databases_max),
        worker_queue_max=int(queue_max),
        preserve_commit_order=ordered != "no",
    )


def table(*, queue_max: str = str(WORKER_QUEUE_MAX)) -> Scheme:
    """scheme name=table [queue_max=]"""
    return ByTable(worker_queue_max=int(queue_max))


SCHEMES: dict[str, Callable[..., Scheme]] = {
    "commit-parent": commit_parent,
    "group-commit": GroupCommit,
    "jobs": jobs,
    "logical-clock": logical_clock,
    "database": database,
    "rows": ByRows,
    "table": table,
}
"""Each takes the arguments of the command `scheme` that are its own, as they are written."""


class Script:
    """One script's scheme and driver."""

    def __init__(self) -> None:
        self.handlers = {"scheme": self.scheme, "append": self.append, "commit": self.commit}

    def scheme(self, command: Command) -> str:
        """scheme name= workers= [room=] [what the scheme takes]: starts anew."""
        arguments = dict(command.arguments)
        name, workers = arguments.pop("name"), int(arguments.pop("workers"))
        room = int(arguments.pop("room", ROOM))
        scheme = SCHEMES[name](**arguments)
        self.driver = SchemeDriver(scheme, workers, room=room)
        return f"{scheme.consistency.value}, ordering {scheme.ordering.value}"

    def append(self, command: Command) -> str:
        """A transaction a line: position: [lc=] [sn=] [parent=] [group=] [domain=] [tables=]
        [items=] [refers=] [us=] [local] [alone].
        """
        command.take()
        self.driver.append(map(entry_of, command.body))
        return self.take()

    def commit(self, command: Command) -> str:
        """commit <position or job> ...: one after the other, as the scheme's ordering has it."""
        for name in command.arguments:
            jobs = [
                job
                for job in self.driver.executing.values()
                if name == label(job) or name in label(job).partition("[")[0].split("+")
            ]
            assert jobs, f"{name} does not execute"
            for job in jobs:
                self.driver.execute(job)
            groups = [group for group in self.driver.committable() if group[0] in jobs]
            assert groups, f"{name} is not the next to commit"
            for group in groups:
                self.driver.commit(group)
        return self.take()

    def take(self) -> str:
        """Takes, and draws what started, what executes where, what waits and for what."""
        started = [f"{label(job)} on {job.worker}" for job in self.driver.take()]
        executing = self.driver.executing
        hold = self.driver.scheme.hold
        return "\n".join(
            (
                f"started: {', '.join(started) or 'nothing'}",
                *(f"worker {worker}: {label(executing[worker])}" for worker in sorted(executing)),
                f"idle: {' '.join(map(str, self.driver.idle)) or 'none'}",
                *([f"kept: {positions(self.driver.kept)}"] if self.driver.kept else []),
                *([f"queue: {positions(self.driver.pending)}"] if self.driver.pending else []),
                *([f"hold: {hold.cause.name} {hold.detail}".rstrip()] if hold else []),
            )
        )


def entry_of(line: str) -> RelayEntry:
    """The transaction that a line describes."""
    described = parse_command(line)
    values = dict(described.arguments)
    header: dict[str, Any] = {
        name: int(values.pop(word))
        for word, name in (
            ("parent", "commit_parent"),
            ("group", "commit_id"),
            ("domain", "domain_id"),
            ("us", "committed_us"),
        )
        if word in values
    }
    if "tables" in values:
        header["tables"] = tuple(sorted(values.pop("tables").split(",")))
    for word, name in (("items", "items"), ("refers", "parent_items")):
        if word in values:
            header[name] = tuple(map(int, values.pop(word).split(",")))
    stamps = int(values.pop("lc", 0)), int(values.pop("sn", 0))
    local, alone = (values.pop(flag, None) is not None for flag in ("local", "alone"))
    assert not values, f"a transaction has no {', '.join(values)}"
    position = int(described.name.removesuffix(":"))
    return entry(position, stamps, alone=alone, local=local, **header)


def positions(entries: Iterable[RelayEntry]) -> str:
    """The positions of entries, as a script draws them."""
    return " ".join(str(one.position) for one in entries)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_gives_its_answers(path: Path, rewrite: bool) -> None:
    run_script(path, Script().handlers, rewrite=rewrite)
