"""Scripts in tests/testdata/members: a group's log, and what follows from it for each member."""

from pathlib import Path

import pytest

from tests.datadriven import run_script
from tests.members.core.group_script import GroupScript
from tests.members.core.joiner_script import JoinerScript

SCRIPTS = sorted((Path(__file__).parents[2] / "testdata" / "members").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_gives_its_answers(path: Path, rewrite: bool) -> None:
    handlers = GroupScript().handlers | JoinerScript().handlers
    run_script(path, handlers, rewrite=rewrite)
