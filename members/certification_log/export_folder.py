"""The folder of an export: its files get their names when all of them are whole, or none does.

The rule it keeps: files are written into a hidden folder beside their final one, which is locked.
Names are given one by one, the last file's first; meanwhile a list of them is in the hidden folder.
An error removes the files. A killed export leaves at most a history without its beginning, never a
shorter one that looks whole; the next export of the same observer removes it.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ...certifier.errors import InvalidSetting
from ..host.file_lock import lock
from ..host.sync import sync
from .files import SUFFIX

NAMES = "names"
"""The list: one name a line."""
_OBSERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_absent(out: Path, observer: str) -> None:
    """Raises InvalidSetting if the folder has files of the observer's log, or its name is invalid.

    Files left by a killed export do not count.
    """
    if not _OBSERVER.fullmatch(observer):
        expected = "1 to 64 letters, digits, -, _ and ., a letter or digit first"
        raise InvalidSetting(name="observer", value=observer, expected=expected)
    if (_work_folder(out, observer) / NAMES).exists():
        return
    of_observer = re.compile(f"{re.escape(observer)}-[^-]+-[0-9a-f]{{16}}{re.escape(SUFFIX)}")
    there = sorted(path for path in out.glob(f"*{SUFFIX}") if of_observer.fullmatch(path.name))
    if there:
        raise InvalidSetting(
            name="out",
            value=out,
            expected=f"a folder without a certification log of {observer}, but it has "
            f"{there[0].name} (files: {len(there)}): name another folder or another observer",
        )


@contextmanager
def locked_work_folder(out: Path, observer: str) -> Iterator[Path]:
    """Yields an empty folder to write in, removed at the end; after an error all files are.

    Raises:
        InvalidSetting: Another export of the observer is at work there, or one that was killed had
            given all names: its files are whole, and stay; or the folder cannot be locked.
    """
    work = _work_folder(out, observer)
    work.mkdir(parents=True, exist_ok=True)
    handle = os.open(work, os.O_RDONLY)
    try:
        _lock(handle, work, observer)
        _clear(work)
        try:
            check_absent(out, observer)
            yield work
        except BaseException:
            _take_back(work)
            work.rmdir()
            raise
        work.rmdir()
    finally:
        os.close(handle)


def name_files(work: Path, names: Sequence[str]) -> None:
    """Gives the files in the work folder their names beside it, durably. The first one, with the
    row that begins the history, is the last to get its name, and to have it on disk.
    """
    (work / NAMES).write_text("".join(f"{name}\n" for name in names))
    sync(work / NAMES)
    sync(work)
    for name in reversed(names):
        if name == names[0]:
            sync(work.parent)
        (work / name).rename(work.parent / name)
    sync(work.parent)
    (work / NAMES).unlink()


def _work_folder(out: Path, observer: str) -> Path:
    return out / f".{observer}.unfinished"


def _lock(handle: int, work: Path, observer: str) -> None:
    """Locks the work folder, which an export that has just ended may have removed."""
    with suppress(FileNotFoundError):
        if lock(handle, work) and os.path.samestat(os.fstat(handle), work.stat()):
            return
    expected = f"a folder where no other export of {observer} is at work: wait for it, or name "
    raise InvalidSetting(
        name="out", value=work.parent, expected=expected + "another folder or another observer"
    )


def _clear(work: Path) -> None:
    """Removes what a killed export has left. If none of its files waits for a name, only the list
    of them was left to remove.
    """
    if not any((work / name).exists() for name in _listed(work)):
        (work / NAMES).unlink(missing_ok=True)
    _take_back(work)


def _listed(work: Path) -> list[str]:
    """Returns the names that files get, or have got; none before the first one does."""
    listed = work / NAMES
    return listed.read_text().splitlines() if listed.exists() else []


def _take_back(work: Path) -> None:
    """Removes the files of an export: those that have their names, the others, then the list."""
    listed = work / NAMES
    if listed.exists():
        for name in _listed(work):
            if not (work / name).exists():
                (work.parent / name).unlink(missing_ok=True)
        sync(work.parent)
    for path in work.iterdir():
        if path != listed:
            path.unlink()
    listed.unlink(missing_ok=True)
