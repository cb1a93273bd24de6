"""Notes what came of each test in the file `FOREIGN_OUTCOMES`."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

_outcomes: dict[str, tuple[str, list[tuple[str | None, str]]]] = {}


def errors_of(error: BaseException | None) -> list[tuple[str | None, str]]:
    """Returns SQLSTATE and text of an exception and of those that led to it, that one last."""
    errors: list[tuple[str | None, str]] = []
    while error is not None and len(errors) < 10:
        state = getattr(error, "sqlstate", None)
        errors.append((state, f"{type(error).__name__}: {error}"))
        error = error.__cause__ or error.__context__
    return errors[::-1]


def note(test: str, outcome: str, errors: list[tuple[str | None, str]]) -> None:
    """Writes a record."""
    with open(os.environ["FOREIGN_OUTCOMES"], "a") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "errors": errors}) + "\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    """Keeps the worst outcome of setup, call and teardown."""
    made: Any = yield
    report = made.get_result()
    known = _outcomes.get(item.nodeid, ("passed", []))
    if report.failed and known[0] in ("passed", "skipped"):
        known = (call.when, errors_of(call.excinfo.value))
    elif report.skipped and known[0] == "passed":
        known = ("skipped", [])
    _outcomes[item.nodeid] = known
    if call.when == "teardown":
        note(item.nodeid, *_outcomes.pop(item.nodeid))
