"""The audit as one file for spark-submit, for clusters and machines without this project.

The file is a zip archive that Python can run. It is called .py, since spark-submit requires that.
Executors need nothing of it: functions travel to them by value.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

_MAIN = "from groupcert.certifier.audit.__main__ import main\n\nraise SystemExit(main())\n"
_SHARED = (
    "__init__.py",
    "errors.py",
    "position.py",
    "history/__init__.py",
    "history/schema.py",
)
_SUFFIXES = (".py", ".js", ".css")


def write_archive(path: Path) -> None:
    """Writes the file; the same release gives the same bytes."""
    held = {"__main__.py": _MAIN, "groupcert/__init__.py": ""}
    certifier = files("groupcert.certifier")
    held |= {
        f"groupcert/certifier/{name}": certifier.joinpath(name).read_text("utf-8")
        for name in _SHARED
    }
    for room in ("audit", "pages"):
        held |= _sources(certifier.joinpath(room), f"groupcert/certifier/{room}")
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, text in sorted(held.items()):
            archive.writestr(ZipInfo(name), text, ZIP_DEFLATED)


def submit_command(path: Path) -> str:
    """Returns the command that runs the file."""
    return f"spark-submit --master spark://HOST:7077 {path} PATH... --out DIR"


def _sources(folder: Traversable, path: str) -> dict[str, str]:
    """Returns the text of each source below a folder, by its path in the archive."""
    held: dict[str, str] = {}
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            held |= _sources(entry, name)
        elif entry.name.endswith(_SUFFIXES):
            held[name] = entry.read_text("utf-8")
    return held
