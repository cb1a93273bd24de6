"""The audit as one file that spark-submit takes, for clusters and machines without this project.

The file is a zip archive that Python runs as it stands. It is called .py, since spark-submit asks
for that. Executors need nothing of it: functions travel to them by value.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

_MAIN = "from certifier.audit.__main__ import main\n\nraise SystemExit(main())\n"
_SHARED = ("__init__.py", "errors.py", "history.py")
_SUFFIXES = (".py", ".html")


def write_archive(path: Path) -> None:
    """Writes the file; the same release gives the same bytes."""
    held = {"__main__.py": _MAIN}
    shared = (files("certifier").joinpath(name) for name in _SHARED)
    held |= {f"certifier/{file.name}": file.read_text("utf-8") for file in shared}
    held |= {f"certifier/audit/{file.name}": file.read_text("utf-8") for file in _own_files()}
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, text in sorted(held.items()):
            archive.writestr(ZipInfo(name), text, ZIP_DEFLATED)


def submit_command(path: Path) -> str:
    """How to run it."""
    return f"spark-submit --master spark://HOST:7077 {path} PATH... --out DIR"


def _own_files() -> list[Traversable]:
    found = files("certifier.audit").iterdir()
    return [file for file in found if file.name.endswith(_SUFFIXES)]
