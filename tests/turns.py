"""Tests that take turns: of those marked `in_turns`, a run has those that a change may break.

What starts whole groups costs seconds of processors for each of the many ways in which one may go
wrong. So a run has a fourth of these tests: first those that import a room, or a file of the tests,
that the change touches, up to half of all; the others are drawn, file by file, by the commit's id,
so that a run of one commit has the same tests at any time. All of them run in `make nightly`.

A change is what differs from where the branch left `main`. On `main` itself there is none, nor in a
tree without git: all are drawn. `TEST_TURN` is the id of another commit, or `all`.
"""

import os
import subprocess
from collections.abc import Iterable, Mapping, Set
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest

from tests.sources import ROOT, Source, imported_names

VARIABLE = "TEST_TURN"
TOUCHED = "TEST_TOUCHED"
"""What the change touches, a room or a file of the tests a line."""
ALL = "all"
ID_DIGITS = 12
"""Of a commit: what git shortens it to depends on the clone."""
RUN_ONE_OF = 4
TOUCHED_ONE_OF = 2
"""The most that a change which touches everything may add: `make test` is to stay short."""
ROOM_OF_CONTRACT = "members/wire/"
READERS_OF_DEPLOY = "tests/cluster/"


def git(*words: str, folder: Path = ROOT) -> str:
    """Returns what git prints; nothing where it fails, or is not there."""
    # In a container the tree may belong to another user, which git refuses without being told.
    command = ["git", "-c", f"safe.directory={folder}", *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.strip()


def changed_files(folder: Path = ROOT) -> list[str]:
    """Returns the files that differ from where this branch left main, committed or not."""
    for main in ("origin/main", "main"):
        if base := git("merge-base", "HEAD", main, folder=folder):
            differing = git("diff", "--name-only", "--no-renames", base, folder=folder)
            added = git("ls-files", "--others", "--exclude-standard", folder=folder)
            return [*differing.splitlines(), *added.splitlines()]
    return []


def touched_by(files: Iterable[str]) -> set[str]:
    """Returns the rooms that files lie in; files of the tests stand for themselves."""
    from tests.test_floors import room_of

    places = set()
    for file in files:
        if file.startswith("tests/"):
            places.add(file)
        elif file.startswith("proto/"):
            places.add(ROOM_OF_CONTRACT)
        elif room := room_of(file):
            places.add(room)
    return places


@cache
def places_of(test_file: str) -> frozenset[str]:
    """Returns the rooms that a file of tests imports, and the files of the tests, itself included;
    those files' imports are its own.
    """
    from tests.test_floors import path_of, room_of

    places = {"deploy/"} if test_file.startswith(READERS_OF_DEPLOY) else set()
    files = [test_file]
    while files:
        file = files.pop()
        if file in places:
            continue
        places.add(file)
        for _, name in imported_names(Source(file, (ROOT / file).read_text())):
            if name.startswith("tests."):
                module = Path(*name.split("."))
                # The last word may be a thing in a module.
                candidates = (module.with_suffix(".py"), module.parent.with_suffix(".py"))
                files += [str(path) for path in candidates if (ROOT / path).is_file()][:1]
            elif room := room_of(path_of(name)):
                places.add(room)
    return frozenset(places)


def due(places: Mapping[str, Set[str]], touched: Set[str], commit: str) -> set[str]:
    """Returns the tests whose turn it is, of those with what they import.

    >>> tests = {f"test_{letter}": {"members/wire/"} for letter in "abcdefgh"}
    >>> [len(due(tests, room, "1f")) for room in (set(), {"members/core/"}, {"members/wire/"})]
    [2, 2, 4]
    >>> sorted(due({**tests, "test_i": {"members/core/"}}, {"members/core/"}, "1f"))[-1]
    'test_i'
    """
    if commit == ALL:
        return set(places)

    def turn(test: str) -> tuple[bool, int]:
        # Files are drawn, so that the group which a file starts serves all of its tests.
        return touched.isdisjoint(places[test]), drawn(commit + test.partition("::")[0])

    ordered = sorted(places, key=turn)
    related = sum(not touched.isdisjoint(each) for each in places.values())
    fewest, most = (-(-len(places) // one_of) for one_of in (RUN_ONE_OF, TOUCHED_ONE_OF))
    return set(ordered[: min(max(related, fewest), most)])


def drawn(text: str = "", below: int = 1 << 32) -> int:
    """Returns a number that a text decides over; without one, this run's commit."""
    return crc32((text or os.environ[VARIABLE]).encode()) % below


# Processes that run tests for this one have the same tests, whatever is edited meanwhile.
if VARIABLE not in os.environ:
    os.environ[VARIABLE] = git("rev-parse", "HEAD")[:ID_DIGITS] or "none"
if TOUCHED not in os.environ:
    os.environ[TOUCHED] = "\n".join(sorted(touched_by(changed_files())))


def touched_places() -> set[str]:
    """Returns what the change of this run touches."""
    return set(os.environ[TOUCHED].splitlines())


def pytest_report_header() -> str:
    """Names the commit and the rooms, for whoever asks why a test has run."""
    rooms = [place for place in sorted(touched_places()) if not place.startswith("tests/")]
    files = len(touched_places()) - len(rooms)
    return f"{VARIABLE}={os.environ[VARIABLE]}, touched: {' '.join(rooms)} files of tests: {files}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves what is not due for the night."""
    waiting = [item for item in items if item.get_closest_marker("in_turns")]
    places = {item.nodeid: places_of(item.path.relative_to(ROOT).as_posix()) for item in waiting}
    chosen = due(places, touched_places(), os.environ[VARIABLE])
    for item in waiting:
        if item.nodeid not in chosen:
            item.add_marker("nightly")
