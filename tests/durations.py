"""How long each test takes: seconds that passed, and seconds of processors.

The quick run is run before every commit, so a test of it may use a few seconds of processors at
most: those, and not the seconds that passed, are the same beside other work, and are compared with
what the machine takes for a known piece of work by then. A run leaves its times in a file if asked
to; `python -m tests.durations FILE...` draws the slowest of several runs up.
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

CPU_SECONDS_MAX = 8.0
"""For a test of the quick run, with the processes that it has started and waited for."""
KNOWN_WORK_SECONDS = 0.05
"""What `_slowness` takes where a test may use so many."""
LONGER_MARKERS = frozenset(("nats", "cluster", "database", "spark", "slow", "nightly"))
SHOWN = 25
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tests" / "bench" / "results" / "test-durations.json"
CPU_PROPERTY = "cpu_seconds"


class Duration(NamedTuple):
    """What a test took, its fixtures included in the seconds that passed."""

    seconds: float
    cpu_seconds: float


class DurationsPlugin:
    """Writes the durations of all tests of a run, those of its workers too, to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: dict[str, float] = defaultdict(float)
        self._cpu_seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds one phase of a test."""
        self._seconds[report.nodeid] += report.duration
        if report.when == "teardown":
            self._cpu_seconds[report.nodeid] += sum(
                value
                for name, value in report.user_properties
                if name == CPU_PROPERTY and isinstance(value, float)
            )

    def pytest_sessionfinish(self) -> None:
        """Writes the file."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        tests = {
            name: Duration(round(seconds, 2), round(self._cpu_seconds[name], 2))
            for name, seconds in self._seconds.items()
        }
        self._file.write_text(json.dumps(tests))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--durations-file`."""
    parser.addoption("--durations-file", type=Path, help="write what each test took to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Has the process that hears of all tests write the file."""
    file = config.getoption("--durations-file")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationsPlugin(file))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measures a test, and fails one of the quick run that takes too long."""
    begin = _cpu_seconds()
    yield
    used = _cpu_seconds() - begin
    item.user_properties.append((CPU_PROPERTY, used))
    is_traced = sys.gettrace() is not None  # For coverage, which takes several times as long.
    quick = is_quick({mark.name for mark in item.iter_markers()})
    if quick and used > CPU_SECONDS_MAX and not is_traced and used > CPU_SECONDS_MAX * _slowness():
        pytest.fail(
            f"{used:.1f} s of processors, {CPU_SECONDS_MAX} s at most: make it faster, or slow"
        )


def _slowness() -> float:
    """Returns how many times as long as usual the machine takes now: a host may slow it down."""
    begin = _cpu_seconds()
    sum(number * number for number in range(1_000_000))
    return max(1.0, (_cpu_seconds() - begin) / KNOWN_WORK_SECONDS)


def is_quick(markers: set[str]) -> bool:
    """Tells whether a test with these markers is in the quick run.

    >>> is_quick({"timeout"}), is_quick({"spark", "timeout"})
    (True, False)
    """
    return LONGER_MARKERS.isdisjoint(markers)


def slowest(files: list[Path]) -> dict[str, object]:
    """Returns the sums and the slowest tests of each file, under the file's name, of those that
    are there still.
    """
    answer: dict[str, object] = {}
    for file in files:
        measured = json.loads(file.read_text())
        tests = {name: Duration(*measured[name]) for name in measured if is_there(name)}
        ordered = sorted(tests.items(), key=lambda test: test[1].seconds, reverse=True)
        answer[file.stem] = {
            "tests": len(tests),
            "seconds": round(sum(each.seconds for each in tests.values())),
            "cpu_seconds": round(sum(each.cpu_seconds for each in tests.values())),
            "slowest": {name: each._asdict() for name, each in ordered[:SHOWN]},
        }
    return answer


def is_there(name: str) -> bool:
    """Tells whether the tree has a test of this name.

    >>> is_there("tests/durations.py::is_there"), is_there("tests/durations.py::is_gone[1]")
    (True, False)
    """
    path, *names = name.partition("[")[0].split("::")
    file = ROOT / path
    # A state machine's is a class with `runTest`, which it inherits.
    called = names[0] if names[-1] == "runTest" else f"def {names[-1]}("
    return file.exists() and called in file.read_text()


def _cpu_seconds() -> float:
    """Returns what this process and those that it has waited for have used."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    RESULTS.write_text(json.dumps(slowest([Path(each) for each in sys.argv[1:]]), indent=2) + "\n")
