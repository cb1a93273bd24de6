"""Schedules of tiny streams, as scripts in `tests/testdata/whatif`: each makespan by hand."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from groupcert.applier.schemes import Cause
from groupcert.applier.whatif.costs import Costs
from groupcert.applier.whatif.scheme_comparison import Line, bounds, run_line
from groupcert.applier.whatif.workload import Stamps, Workload, load
from tests.applier.whatif.run_bounds import bound_us
from tests.applier.whatif.streams import parse
from tests.datadriven import Command, run_script, table

SCRIPTS = sorted((Path(__file__).parents[2] / "testdata" / "whatif").glob("*.txt"))


class Script:
    """The stream of a script."""

    workload: Workload

    def stream(self, command: Command) -> str:
        """Takes a stream: a transaction a line, its time, its rows, what else is known."""
        commit, execute, row = command.take("commit_us", "execute_us", "row_us")
        costs = Costs(
            commit_us=int(commit or 0), execute_us=int(execute or 0), row_us=int(row or 0)
        )
        self.workload = load(parse(command.body), costs)
        limits = bounds(self.workload)
        chain = " ".join(f"T{number + 1}" for number in limits.path.transactions)
        return f"work {limits.serial_us} us, critical path {limits.path.length_us} us: {chain}"

    def group(self, command: Command) -> str:
        """Makes group commits."""
        (size,) = command.take("size")
        self.workload.group(int(size or 1))
        entries = self.workload.entries(Stamps.WRITE_SETS)
        return "commit ids " + " ".join(str(entry.header.commit_id) for entry in entries)

    def schedule(self, command: Command) -> str:
        """Runs the lines of the body, `scheme` or `scheme conflicts`, with so many workers."""
        (workers,) = command.take("workers")
        header = "scheme | makespan | bound | exec | wait | commit | idle | groups | overtakers"
        rows = []
        for words in command.body:
            scheme, *setting = words.split(" ", 1)
            stamps = Stamps.LOCK_INTERVALS if setting == ["locks"] else Stamps.WRITE_SETS
            conflicts = setting[0] if scheme == "jobs" else None
            line = Line(scheme, conflicts=conflicts, stamps=stamps)
            run = run_line([self.workload], line, int(workers or 1))
            idle = [f"{_name(cause)} {time_us}" for cause, time_us in _by_name(run.idle_us)]
            rows.append(
                (
                    words,
                    run.makespan_us,
                    bound_us(self.workload, run),
                    run.executing_us,
                    run.waiting_us,
                    run.committing_us,
                    ", ".join(idle) or "-",
                    run.commit_groups,
                    "parts" if run.overtakers is None else run.overtakers,
                )
            )
        return "\n".join(table(header.split(" | "), rows))


def _by_name(idle_us: Mapping[Cause | None, int]) -> list[tuple[Cause | None, int]]:
    """Idle time by cause, by name."""
    return sorted(idle_us.items(), key=lambda pair: _name(pair[0]))


def _name(cause: Cause | None) -> str:
    return cause.name.lower() if cause else "end"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    script = Script()
    handlers = {"stream": script.stream, "group": script.group, "schedule": script.schedule}
    run_script(path, handlers, rewrite=request.config.getoption("--rewrite"))
