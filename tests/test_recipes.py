"""Each recipe of CONTRIBUTING.md is a whole change: applied to a copy of the tree, its tests pass.

A recipe that the code has left behind fails here. Mend it as its reader would: make the change, and
keep `git diff --no-prefix -U1` of it in `tests/testdata/recipes`.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commands import CommandFailed, run
from tests.handbook import run_commands
from tests.sources import ROOT
from tests.wheels import copy_of

RECIPES = ROOT / "tests" / "testdata" / "recipes"
APPLIED = ("-p0", "-C1")
COMMANDS = {"make proto": "python deploy/hatch_build.py", ".venv/bin/pytest": "python -m pytest"}
"""What stands for commands of a tree that has a virtual environment of its own."""


class Recipe(NamedTuple):
    """A recipe by its heading: the name of its difference, and the commands that a reader types."""

    heading: str
    name: str
    commands: str

    @property
    def diff(self) -> Path:
        """The file with the difference."""
        return RECIPES / f"{self.name}.diff"


def recipes() -> list[Recipe]:
    """The recipes, in their order."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    _, *parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    found = []
    for heading, told in zip(parts[::2], parts[1::2], strict=True):
        (name,) = re.findall(r"\]\(tests/testdata/recipes/(\w+)\.diff\)", told)
        (commands,) = re.findall(r"^```sh\n(.*?)^```$", told, re.MULTILINE | re.DOTALL)
        found.append(Recipe(heading, name, commands))
    return found


def why_it_does_not_apply(recipe: Recipe) -> str:
    """What git says of a recipe's difference; empty: it applies to the tree."""
    try:
        return run("git", "apply", "--check", *APPLIED, str(recipe.diff))
    except CommandFailed as error:
        return str(error)


def test_each_kept_change_is_a_recipe() -> None:
    assert {recipe.name for recipe in recipes()} == {path.stem for path in RECIPES.iterdir()}


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.name)
def test_a_recipe_applies(recipe: Recipe) -> None:
    why = why_it_does_not_apply(recipe)
    assert not why, f"your change moved a recipe's context: renew its diff\n{why}"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.name)
def test_a_recipe_is_a_whole_change(recipe: Recipe) -> None:
    with copy_of(["."]) as copy:
        run("git", "init", "--quiet", folder=copy)
        run("git", "apply", *APPLIED, str(recipe.diff), folder=copy)
        commands = recipe.commands
        for written, here in COMMANDS.items():
            commands = commands.replace(written, here)
        package = {"PYTHONPATH": str(copy / ".build" / "package")}
        laid_out = "python deploy/hatch_build.py\n"  # As `make venv` has done in the reader's tree.
        assert " passed" in run_commands(laid_out + commands, copy, environment=package)
