"""The wheel and the source distribution that users install, made of this tree on this machine."""

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.commands import run
from tests.sources import ROOT

SOURCES = (
    "certifier",
    "applier",
    "members",
    "proto",
    "pyproject.toml",
    "README.md",
    "deploy/hatch_build.py",
    "deploy/alerts.yml",
    "deploy/dashboard.json",
)
PINS = ROOT / "deploy" / "constraints.txt"


def files_of(names: Iterable[str]) -> list[Path]:
    """Returns the files of some paths of the tree, in order, as git knows or would add them."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    listed = run(*command, "--cached", "--others", "--exclude-standard", *names)
    names = sorted(set(listed.split("\0")) - {""})
    return [path for name in names if (path := ROOT / name).is_file()]


def make_wheels(folder: Path, extras: str | None = None) -> None:
    """Puts the wheel into a folder; with extras, also those of all that it needs with them.

    The tree is copied before: a build lays out `.build/package` again, which other tests import.

    Raises:
        CommandFailed: As it says.
    """
    with copy_of(SOURCES) as copy:
        needed = ["--no-deps", str(copy)] if extras is None else [f"{copy}[{extras}]"]
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation"]
        run(*pip, "-c", str(PINS), "-w", str(folder), *needed)


def make_distributions(folder: Path) -> None:
    """Puts wheel and source distribution into a folder, made in a tree that has been built before:
    `.build/package` has stubs there, and links to the sources.

    Raises:
        CommandFailed: As it says.
    """
    with copy_of(["."]) as copy:
        run(sys.executable, "deploy/hatch_build.py", folder=copy)
        run(sys.executable, "-m", "hatchling", "build", "--directory", str(folder), folder=copy)


@contextmanager
def copy_of(names: Iterable[str]) -> Iterator[Path]:
    """Has a copy of some paths of the tree."""
    with tempfile.TemporaryDirectory(prefix="groupcert-wheel-") as copy:
        for path in files_of(names):
            there = Path(copy) / path.relative_to(ROOT)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, there)
        yield Path(copy)


def make_environment(folder: Path) -> Path:
    """Returns the folder of programs of a new virtual environment, which has nothing but Python."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    return folder / "bin"


def install(programs: Path, distribution: str) -> None:
    """Installs a wheel or a source distribution, or `WHEEL[EXTRAS]`, and what it needs, into a
    virtual environment.
    """
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python")]
    pins = ["-c", str(PINS), "--build-constraint", str(PINS)]
    run(*pip, "install", "--quiet", *pins, distribution)
