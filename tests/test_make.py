"""What `make` does before it starts a group: it installs what that needs, and chooses passwords."""

import os
import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

from tests.cluster.engine import compose_command
from tests.sources import ROOT
from tests.wheels import files_of

NEEDED = (
    "Makefile",
    "pyproject.toml",
    "proto",
    "deploy/constraints.txt",
    "deploy/hatch_build.py",
    "deploy/compose.yaml",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree in which nothing was made."""
    for path in files_of(NEEDED):
        there = tmp_path / path.relative_to(ROOT)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(path.read_bytes())
    return tmp_path


def make(tree: Path, *words: str) -> str:
    """Returns what `make` prints; what it is told by a `make` around it does not count."""
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    command = ["make", "--directory", str(tree), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def installs(tree: Path, target: str) -> set[str]:
    """Returns the extras that a target would install."""
    printed = make(tree, "--dry-run", target)
    return {extra for extra in ("member", "dev") if f"--editable '.[{extra}]'" in printed}


def test_the_demo_installs_what_a_member_needs_and_the_tests_the_rest(tree: Path) -> None:
    (tree / ".venv").mkdir()
    assert installs(tree, "demo") == {"member"}
    assert installs(tree, "test-quick") == {"dev"}
    (tree / ".venv" / ".member").touch()
    assert installs(tree, "demo") == set()
    assert installs(tree, "test-quick") == {"dev"}
    (tree / ".venv" / ".installed").touch()
    (tree / ".venv" / ".member").unlink()
    assert installs(tree, "demo") == installs(tree, "test-quick") == set()


def test_a_cluster_has_passwords_of_its_own_which_stay(tree: Path) -> None:
    file = tree / "deploy" / ".env"
    file.write_text("IMAGE=groupcert:next\n")
    file.chmod(0o644)
    assert "deploy/.env" in make(tree, "--dry-run", "cluster")
    make(tree, "passwords")
    kept = file.read_text()
    values = dict(line.split("=") for line in kept.splitlines())
    text = (tree / "deploy" / "compose.yaml").read_text()
    assert values.keys() == {"IMAGE", *re.findall(r"\$\{(\w+_PASSWORD):", text)}
    assert values.pop("IMAGE") == "groupcert:next"
    assert all(re.fullmatch("[0-9a-f]{32}", value) for value in values.values())
    assert len(set(values.values())) == len(values)
    assert file.stat().st_mode & 0o777 == 0o600
    make(tree, "passwords")
    assert file.read_text() == kept
    ignored = ["git", "-c", f"safe.directory={ROOT}", "check-ignore", "--quiet", "deploy/.env"]
    assert subprocess.run(ignored, cwd=ROOT).returncode == 0
    if which(compose_command()[0]):
        read = [*compose_command(), "-f", str(tree / "deploy" / "compose.yaml"), "config"]
        shown = subprocess.run(read, capture_output=True, text=True)
        assert f"operator:{values['OPERATOR_PASSWORD']}@log1" in shown.stdout, shown.stderr
