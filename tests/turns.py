"""Tests that take turns: those marked `in_turns` run on every fourth day each, a fourth of them a
day, and all of them in `make nightly`.

What starts whole groups costs seconds of processors for each of the many ways in which one may go
wrong. `TEST_TURN` is the turn, 0 to 3, for whoever wants another one than today's, or `all`.
"""

import os
import time
from zlib import crc32

import pytest

TURNS = 4
VARIABLE = "TEST_TURN"
DAY_SECONDS = 86_400

os.environ.setdefault(VARIABLE, str(int(time.time()) // DAY_SECONDS % TURNS))
"""Processes that run tests for this one have the same turn, also where the day ends meanwhile."""


def is_due(test: str, turn: str) -> bool:
    """Tells whether it is a test's turn.

    >>> [turn for turn in ("0", "1", "2", "3", "all") if is_due("tests/a.py::test_a[1]", turn)]
    ['0', 'all']
    """
    return turn in (str(crc32(test.encode()) % TURNS), "all")


def pytest_configure() -> None:
    """Refuses a turn that there is not: no test would be due."""
    turns = [*map(str, range(TURNS)), "all"]
    if os.environ[VARIABLE] not in turns:
        problem = f"{VARIABLE}={os.environ[VARIABLE]} is none of {', '.join(turns)}"
        raise pytest.UsageError(problem)


def pytest_report_header() -> str:
    """Names the turn, for whoever repeats the run on another day."""
    return f"{VARIABLE}={os.environ[VARIABLE]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves what is not due for the night."""
    for item in items:
        if item.get_closest_marker("in_turns") and not is_due(item.nodeid, os.environ[VARIABLE]):
            item.add_marker("nightly")
