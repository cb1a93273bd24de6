"""Notes what came of each test in the file `FOREIGN_OUTCOMES`."""

from collections.abc import Iterator
from typing import Any

import pytest
from door_call import errors_of, note  # type: ignore[import-not-found]

_outcomes: dict[str, tuple[str, list[tuple[str | None, str]]]] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    """Keeps the worst outcome of setup, call and teardown."""
    made: Any = yield
    report = made.get_result()
    known = _outcomes.get(item.nodeid, ("passed", []))
    if report.failed and known[0] in ("passed", "skipped"):
        known = (call.when, errors_of(call.excinfo.value))
    elif report.skipped and known[0] == "passed":
        known = ("skipped", [(None, f"skipped: {report.longrepr[-1]}")])
    _outcomes[item.nodeid] = known
    if call.when == "teardown":
        note(item.nodeid, *_outcomes.pop(item.nodeid))
