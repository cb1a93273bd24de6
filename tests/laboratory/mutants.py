"""What is wrong on purpose, so that tests see it found: one rule is broken at one place.

A room has a table, `MUTANTS`, by name. A process is made wrong by the context that `install`
returns; processes that are started, by their environment, which names the table and the mutant.
Containers have this file mounted: it needs the standard library alone.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest.mock import patch

VARIABLE = "MUTANT"
TESTS = Path(__file__).resolve().parents[1]
FOLDER = TESTS / "laboratory" / "mutant"
"""Has a `sitecustomize.py`."""

_for_life = ExitStack()
"""What is kept: a context that is forgotten ends."""

Install = Callable[[], AbstractContextManager[object]]


class Mutant(NamedTuple):
    """How to install it, what has to be found, what else may follow, and a seed that shows it."""

    install: Install
    found: frozenset[str] = frozenset()
    follows: frozenset[str] = frozenset()
    seed: int = 0


def mutant(
    place: type | ModuleType,
    name: str,
    wrong: object,
    found: str = "",
    follows: str = "",
) -> Mutant:
    """Returns what puts something wrong in the place of a class's or module's own."""
    return Mutant(
        lambda: patch.object(place, name, wrong),
        frozenset(found.split()),
        frozenset(follows.split()),
    )


def environment_of(
    table: str, name: str, folder: Path = FOLDER, tests: Path = TESTS
) -> dict[str, str]:
    """Returns what the environment of processes needs that are a mutant.

    Args:
        table: The module that has it.
        folder: This one's `mutant`, where the processes see it.
        tests: The folder `tests`, where they see it.
    """
    return {VARIABLE: f"{table}:{name}", "PYTHONPATH": f"{folder}{os.pathsep}{tests.parent}"}


def install() -> None:
    """Makes this process wrong for its life, if its environment says how."""
    if named := os.environ.get(VARIABLE):
        table, _, name = named.partition(":")
        _for_life.enter_context(import_module(table).MUTANTS[name].install())


def run_program(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Runs `python -m` with these arguments, as a developer does, with its files in a folder.
    Returns its exit code, and what it printed.
    """
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
        env={**os.environ, "TMPDIR": str(folder), **(environment or {})},
    )
    return done.returncode, done.stdout + done.stderr
