"""From nothing to a group that has lost a member and says so: what somebody new does, step by step.

Install the wheel in an empty folder, start a group, run the README's first program, open the
console in a browser, kill a member, see that on the page, stop the group. Bound: three minutes
altogether, and five seconds until the page says it. `tests/integration/test_first_hour.py` does the
same steps in every run.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from selenium.webdriver import Chrome

from groupcert.members.commands.cli_up import Ready
from groupcert.members.host.loopback import HOST
from tests.bench.harness import Document, Load, Run, circumstances, in_turns, scratch
from tests.browser import count, running_browser, text
from tests.integration.waiting import wait_for
from tests.test_readmes import BLOCKS, PORTS, is_python, put_in
from tests.wheels import PINS, make_wheels

SECONDS_MAX = 180.0
SEEN_SECONDS_MAX = 5.0
STEPS = ("install", "up", "program", "console", "killed member seen", "down")


class Newcomer(NamedTuple):
    """What somebody new has: a wheel, a browser, and room for empty folders."""

    folder: Path
    wheel: Path
    browser: Chrome


def first_hour(run: Run, repeat: int = 3) -> Document:
    """Does all that somebody new does, each time in an empty folder.

    pip downloads everything, as on a new machine. Exits with 1 if it takes more than three minutes,
    or the page more than five seconds.

    Args:
        repeat: How often.
    """
    load = Load("the steps", _measured)
    results = run.measure(in_turns([load], repeat), _newcomer())
    rounds: list[dict[str, float]] = results.get(load.name, [])
    for taken in rounds:
        run.check(sum(taken.values()) <= SECONDS_MAX, f"more than {SECONDS_MAX:.0f} s: {taken}")
        seen_in_time = taken["killed member seen"] <= SEEN_SECONDS_MAX
        run.check(seen_in_time, f"more than {SEEN_SECONDS_MAX:.0f} s until the page tells: {taken}")
    return {
        **circumstances(),
        "bound_seconds": SECONDS_MAX,
        "seconds": rounds,
        "sum_seconds": [round(sum(taken.values()), 1) for taken in rounds],
    }


@contextmanager
def _newcomer() -> Iterator[Newcomer]:
    with scratch() as folder, running_browser() as browser:
        make_wheels(folder)
        (wheel,) = folder.glob("*.whl")
        yield Newcomer(folder, wheel, browser)


def _measured(newcomer: Newcomer) -> dict[str, float]:
    with scratch(newcomer.folder) as empty:
        return measure(empty, newcomer.wheel, newcomer.browser, ("--no-cache-dir",))


def measure(
    folder: Path, wheel: Path, browser: Chrome, pip_flags: Sequence[str] = ()
) -> dict[str, float]:
    """Does all steps in an empty folder; returns the seconds that each took, in their order."""
    taken: dict[str, float] = {}

    @contextmanager
    def step(name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        taken[name] = round(time.monotonic() - begun, 2)

    programs = folder / "environment" / "bin"
    (program,) = (each.text for each in BLOCKS if each.path == "README.md" and is_python(each))
    with step("install"):
        _run(folder, sys.executable, "-m", "venv", "environment")
        pins = ("-c", str(PINS))
        _run(folder, programs / "pip", "install", *pip_flags, *pins, f"{wheel}[member]")
    try:
        with step("up"):
            ready: Ready = json.loads(
                _run(folder, programs / "groupcert", "up", "--detach", "--json")
            )
        with step("program"):
            code = put_in(program, {f"{HOST}:{PORTS['m1']}": ready["members"]["m1"]})
            _run(folder, programs / "python", "-c", code)
        with step("console"):
            browser.get(ready["console"])
            wait_for("the page shows the group", lambda: count(browser, "#members .good") == 3)
        with step("killed member seen"):
            os.kill(ready["processes"]["m3"], signal.SIGKILL)
            wait_for("the page tells", lambda: "m3 does not answer" in text(browser, "#problems"))
    finally:
        with step("down"):
            _run(folder, programs / "groupcert", "down")
    assert tuple(taken) == STEPS
    return taken


def _run(folder: Path, *command: str | Path) -> str:
    """Runs a command, which has to end well, and returns what it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
