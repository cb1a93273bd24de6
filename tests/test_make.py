"""What `make` installs first: whoever only wants to see a group waits for no more."""

import os
import subprocess
from pathlib import Path

from tests.sources import ROOT
from tests.wheels import files_of

NEEDED = ("Makefile", "pyproject.toml", "proto", "deploy/constraints.txt", "deploy/hatch_build.py")


def installs(tree: Path, target: str) -> set[str]:
    """Returns the extras that a target would install."""
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    command = ["make", "--dry-run", "--directory", str(tree), target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {extra for extra in ("member", "dev") if f"--editable '.[{extra}]'" in done.stdout}


def test_the_demo_installs_what_a_member_needs_and_the_tests_the_rest(tmp_path: Path) -> None:
    for path in files_of(NEEDED):
        there = tmp_path / path.relative_to(ROOT)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(path.read_bytes())
    (tmp_path / ".venv").mkdir()
    assert installs(tmp_path, "demo") == {"member"}
    assert installs(tmp_path, "test-quick") == {"dev"}
    (tmp_path / ".venv" / ".member").touch()
    assert installs(tmp_path, "demo") == set()
    assert installs(tmp_path, "test-quick") == {"dev"}
    (tmp_path / ".venv" / ".installed").touch()
    (tmp_path / ".venv" / ".member").unlink()
    assert installs(tmp_path, "demo") == installs(tmp_path, "test-quick") == set()
