"""Which tests take their turn: a change's own first, never many more than without one."""

from pathlib import Path

import pytest

from tests import turns
from tests.turns import changed_files, due, git, places_of, touched_by

COMMITS = ("1f2e", "3d4c", "5b6a", "7988")
TESTS = {f"test_{number}": {f"room{number % 10}/"} for number in range(100)}


@pytest.fixture
def branch(tmp_path: Path) -> Path:
    """A repository, on a branch that left main."""
    for words in (
        "init --quiet --initial-branch main",
        "config user.name n",
        "config user.email e",
        "commit --quiet --allow-empty -m first",
        "switch --quiet --create branch",
    ):
        git(*words.split(), folder=tmp_path)
    return tmp_path


def test_a_change_has_what_is_committed_what_is_not_and_what_is_new(branch: Path) -> None:
    assert changed_files(branch) == []
    for name in ("gone", "kept"):
        (branch / name).write_text(f"{name} on main\n")
    git("add", ".", folder=branch)
    git("commit", "--quiet", "-m", "second", folder=branch)
    assert changed_files(branch) == ["gone", "kept"]
    git("branch", "--force", "main", folder=branch)
    assert changed_files(branch) == []
    git("mv", "gone", "moved", folder=branch)
    (branch / "new").touch()
    assert changed_files(branch) == ["gone", "moved", "new"]


def test_where_nothing_can_be_compared_nothing_is_touched(tmp_path: Path) -> None:
    assert changed_files(tmp_path / "none") == []


def test_files_touch_their_room_and_the_contract_what_reads_it() -> None:
    rooms = {"members/core/x.py": "members/core/", "proto/x.proto": "members/wire/"}
    rooms |= {"deploy/kubernetes/x.yaml": "deploy/", "tests/waiting.py": "tests/waiting.py"}
    assert touched_by([*rooms, "README.md", "pyproject.toml"]) == set(rooms.values())


def test_a_file_of_tests_stands_on_what_its_support_imports_too() -> None:
    places = places_of("tests/integration/test_log_rebuild.py")
    assert places >= {"tests/integration/waiting.py", "members/total_order/", "members/commands/"}
    assert "deploy/" not in places
    assert "deploy/" in places_of("tests/cluster/test_faults.py")


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize(
    ("touched", "count"), [(0, 25), (1, 25), (2, 25), (3, 30), (5, 50), (6, 50), (10, 50)]
)
def test_the_tests_of_touched_rooms_come_first(commit: str, touched: int, count: int) -> None:
    rooms = {f"room{number}/" for number in range(touched)}
    chosen = due(TESTS, rooms, commit)
    assert len(chosen) == count
    theirs = {test for test in TESTS if TESTS[test] <= rooms}
    assert theirs <= chosen or chosen < theirs


def test_commits_draw_other_tests_and_one_draws_the_same() -> None:
    drawings = [due(TESTS, set(), commit) for commit in COMMITS]
    assert drawings == [due(TESTS, set(), commit) for commit in COMMITS]
    assert len(set.union(*drawings)) > 50
    assert due(TESTS, set(), turns.ALL) == TESTS.keys()
